"""Models: parameter counts, EvoNorm and its formula, seeds, and stacked parameters compared with a loop."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from builders import cases, refused
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments import RunConfig
from mixwise.experiments.classification import ModelSection, build_model
from mixwise.models import EvoNormS0, build, logistic_regression, mlp, resnet18, resnet20, seeded, small_cnn

pytestmark = pytest.mark.usefixtures("one_thread")  # small tensors: more threads only wait for each other

NORMS = ["evonorm", "group", "none"]

# name, factory, shape of a sample: every kind of model, small where there is a choice
CASES = {
    "small-cnn": (partial(small_cnn, channels=1), (1, 16, 16)),
    "mlp": (partial(mlp, (12, 7, 5, 10)), (3, 2, 2)),
    "logistic": (partial(logistic_regression, 12, 10), (12,)),
    **{f"resnet20-{norm}": (partial(resnet20, norm=norm), (3, 8, 8)) for norm in NORMS},
    "resnet18": (partial(resnet18, 10), (3, 32, 32)),
}


def normal(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def model_and_samples(name: str, batch: int, seed: int = 0, dtype=torch.float64) -> tuple[nn.Module, torch.Tensor]:
    """A model away from its start, where the zeros at the ends of the branches would hide most of it, and samples."""
    factory, shape = CASES[name]
    model = seeded(factory, seed).to(dtype)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(0.1 * normal(*p.shape, seed=1000 * seed + i, dtype=dtype))
    return model, normal(batch, *shape, seed=seed, dtype=dtype)


def count(factory: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):  # shapes without numbers
        model = factory()
    return sum(p.numel() for p in model.parameters())


# --- parameter counts ---


@cases(
    "factory, classes, channels, stem, activations, published",
    (resnet20, 10, 3, 9 * 16, 16 + 3 * (16 + 32 + 64), 269_722),
    (resnet18, 1000, 3, 49 * 64, 64 + 2 * 960, 11_689_512),
)
def test_residual_networks_have_the_published_size(factory, classes, channels, stem, activations, published):
    """He et al., Table 6: 0.27 million; torchvision's count of ResNet-18 with BatchNorm."""
    assert count(partial(factory, classes, "group")) == published
    assert count(partial(factory, classes, "group", channels=1)) == published - 2 * stem
    assert count(partial(factory, classes, "evonorm")) == published + activations
    assert count(partial(factory, classes, "none")) == published - activations


def test_the_small_cnn_is_the_one_of_the_benchmark():
    layers = [layer for layer in small_cnn() if not isinstance(layer, nn.Flatten)][1:]
    assert [type(layer) for layer in layers] == [nn.Conv2d, nn.GroupNorm, nn.ReLU] * 3 + [nn.Linear]
    shapes = [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in layers[0:9:3]]
    assert shapes == [
        (inputs, outputs, (3, 3), (stride, stride), (1, 1))
        for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 2))
    ]
    assert ([g.num_groups for g in layers[1:9:3]], count(small_cnn)) == ([4, 8, 8], 19_626)
    assert count(partial(mlp, [8, 7, 6, 5])) == 9 * 7 + 8 * 6 + 7 * 5


# --- shapes, gradients, buffers ---


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_gets_a_gradient(name):
    model, x = model_and_samples(name, batch=4, dtype=torch.float32)
    cross_entropy(model(x), torch.arange(4)).backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
        assert p.grad.any(), key


@pytest.mark.parametrize("name", CASES)
def test_a_sample_depends_on_neither_the_others_nor_buffers_nor_the_mode(name):
    model, x = model_and_samples(name, batch=3)
    alone = torch.cat([model(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(model(x), alone, rtol=1e-12, atol=1e-12)
    assert not list(model.buffers())
    assert torch.equal(model.train()(x), model.eval()(x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("factory", [resnet20, resnet18])
def test_at_the_start_a_block_is_its_shortcut(factory, norm):
    model = seeded(partial(factory, norm=norm), 0).double()
    x = normal(2, model.stem(normal(1, 3, 32, 32)).shape[1], 8, 8)
    for block in model.blocks:
        assert torch.equal(block(x), torch.relu(block.shortcut(x)))
        x = block(x)


def test_the_parameter_free_shortcut_takes_every_other_pixel_and_adds_zeros():
    x, shortcut = normal(2, 16, 6, 6), resnet20().blocks[3].shortcut
    y = shortcut(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert y.shape == (2, 32, 3, 3)
    assert not y[:, 16:].any()
    assert not list(shortcut.parameters())


# --- EvoNorm-S0 ---


@pytest.mark.parametrize(
    ("channels", "groups", "shape"),
    [(6, 2, (4, 5)), (6, 3, (7,)), (4, 4, (3, 3)), (4, 1, (2, 2)), (5, 32, (3, 2)), (64, 32, (2, 2)), (8, 2, ())],
)
def test_evonorm_is_its_formula(channels, groups, shape):
    layer = EvoNormS0(channels, groups, eps=1e-3).double()
    for i, p in enumerate(layer.parameters()):
        p.data = normal(channels, seed=i)
    x = 3 * normal(2, channels, *shape, seed=9) + 5
    v, gamma, beta = (p.view(-1, *[1] * len(shape)) for p in (layer.v, layer.gamma, layer.beta))
    members = x.view(2, layer.groups, channels // layer.groups, *shape).flatten(2)
    variance = members.var(2, correction=0).repeat_interleave(channels // layer.groups, 1)
    std = (variance + 1e-3).sqrt().view(2, channels, *[1] * len(shape))
    torch.testing.assert_close(layer(x), x * torch.sigmoid(v * x) / std * gamma + beta, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("channels", [1, 6, 16, 32, 37, 48, 64, 512])
@pytest.mark.parametrize("limit", [4, 32])
def test_the_groups_are_as_many_as_divide_the_channels(channels, limit):
    assert EvoNormS0(channels, limit).groups == max(g for g in range(1, limit + 1) if channels % g == 0)


def test_evonorm_with_a_large_mean_keeps_its_digits():
    """In float32 a mean of 10⁴ deviations leaves three digits; E[x²] − E[x]² would leave none."""
    x = normal(1, 2, 64, 64, seed=1) + 1e4
    layer = EvoNormS0(2, groups=1)
    torch.testing.assert_close(layer(x.float()).double(), layer.double()(x), rtol=2e-3, atol=0)


# --- seeds ---


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_model_depends_on_the_seed_alone(name):
    factory, _ = CASES[name]
    state, a = torch.get_rng_state(), seeded(factory, 5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    with torch.device("meta"):  # nor on the default device
        assert same(a, seeded(factory, 5))
    assert same(a, seeded(factory, np.int64(5)))
    assert not same(a, seeded(factory, 6))


# --- dtypes and devices ---


@pytest.mark.parametrize("name", CASES)
def test_models_move_to_other_dtypes_and_devices(name):
    factory, shape = CASES[name]
    model, x = seeded(factory, 0), normal(2, *shape)
    expected = model.double()(x)
    assert (expected.dtype, model.float()(x.float()).dtype) == (torch.float64, torch.float32)
    half = model.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    # bfloat16 has 8 bits: up to 20 layers of relative errors of 2⁻⁸ each
    torch.testing.assert_close(half.double(), expected, rtol=0.2, atol=0.2)
    # The meta device holds no numbers: a tensor made on the CPU inside a forward pass would be found.
    y = model.to("meta")(torch.empty(2, *shape, device="meta", dtype=torch.bfloat16))
    assert (y.device.type, y.shape) == ("meta", (2, 10))


# --- names, options, errors ---


def built(name, **options):
    return lambda: build(name, seed=0, **options)


def fed(factory, *shape):
    return lambda: factory()(torch.zeros(shape))


@cases(
    "error, message, call",
    (ConfigError, "'resnet21'; did you mean resnet20.*: .*logistic, mlp, resnet18, resnet20", built("resnet21")),
    (ConfigError, r"model resnet20.norm = 'batch': .*'evonorm', 'group' or 'none'", built("resnet20", norm="batch")),
    (ConfigError, "classes = True: .*integer", built("small-cnn", classes=True)),
    (ConfigError, r"sizes = \(784,\): .*at least 2 items", built("mlp", sizes=(784,))),
    (ConfigError, "0 channels in up to 32 groups", partial(EvoNormS0, 0)),
    (ConfigError, "unknown norm 'batch'", partial(resnet20, norm="batch")),
    (TrainingError, r"\(3, 32, 32\); .*\(3, 16, 16\)", fed(small_cnn, 2, 3, 32, 32)),
    (TrainingError, r"\(3072,\); .*\(784,\)", fed(mlp, 2, 3, 32, 32)),
    (TrainingError, r"\(2, 1, 3, 3\); .*\(N, 4, …\)", fed(partial(EvoNormS0, 4), 2, 1, 3, 3)),
)
def test_invalid_names_options_and_samples_are_rejected(error, message, call):
    refused(error, message, call)


@pytest.mark.parametrize("kind", ["mlp", "logistic", "small-cnn", "resnet20"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 16, 16), (3, 32, 32)])  # digits, Fashion-MNIST, CIFAR-10
def test_models_fit_the_data_without_options(kind, shape):
    run = RunConfig.model_validate({"steps": 1, "graph": "ring:4", "optimizer": {"lr": 0.1}, "policy": "auto"})
    x = torch.rand(2, *shape)
    module = build_model(run, ModelSection(kind=kind), 7, 0, x=x)
    assert module(x).shape == (2, 7)
