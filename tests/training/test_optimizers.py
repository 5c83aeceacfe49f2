import math

import numpy as np
import pytest
import torch
from torch import nn

from builders import cases, mixture_task, random_rows, refused, sgd, simulated, stepped
from mixwise.errors import TrainingError
from mixwise.graphs import ring
from mixwise.mixing import MixingMatrix
from mixwise.models import mlp, seeded
from mixwise.tasks import QuadraticTask, random_quadratics
from mixwise.training import factor
from mixwise.training.optimizers import ELEMENTWISE, check_elementwise, clip_rows, fuse_where_safe, step_rows
from plain_torch import trained

NODES = 4
IDENTITY = MixingMatrix.from_dense(np.eye(NODES), ring(NODES))
SETTINGS = {
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}],
    "Adam": [{"lr": 0.01}, {"lr": 0.01, "amsgrad": True}],
    "AdamW": [{"lr": 0.01, "weight_decay": 0.2}],
    "RMSprop": [{"lr": 0.01}, {"lr": 0.01, "momentum": 0.9, "centered": True}],
    "Adagrad": [{"lr": 0.05}],
    "Adadelta": [{}],
    "Adamax": [{"lr": 0.01}],
    "NAdam": [{"lr": 0.01}],
    "RAdam": [{"lr": 0.01}],
    "Rprop": [{"lr": 0.01}],
    "ASGD": [{"lr": 0.05}],
}
ALL = [(name, options) for name, settings in SETTINGS.items() for options in settings]


def biases_apart(name, parameter):
    return int(parameter.ndim < 2)


def make_task(**options):
    module = lambda: seeded(lambda: mlp((8, 12, 4)), 0)  # noqa: E731
    return mixture_task(module, NODES, **{"batch": 6, "dtype": torch.float64, **options})


def alone(task, optimizer, **options):
    """W = I, no mixing: every node trains by itself."""
    return simulated(IDENTITY, graph=IDENTITY.graph, task=task, optimizer=optimizer, **options)


def assert_same_steps(training, make, **options):
    """Every row moves as a module of its own does with an optimizer of its own.

    Element by element the operations are the same, so 1e-12 is generous.
    """
    start, modules = training.X.clone(), trained(training.task, IDENTITY, make, 15, **options)
    expected = torch.stack([training.task.layout.flatten(module) for module in modules])
    torch.testing.assert_close(stepped(training, 15).X, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(training.X, start, atol=1e-3)


# --- rows are as good as modules of their own ---


@pytest.mark.parametrize("apart", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize(("name", "options"), ALL)
def test_rows_move_as_separate_modules_with_separate_optimizers(name, options, apart):
    """Also where biases have a learning rate of their own."""
    kind = getattr(torch.optim, name)

    def make(weights, biases):
        return kind([{"params": weights}, {"params": biases, "lr": 0.02}] if apart else weights + biases, **options)

    def of_module(module):
        return make(*([p for p in module.parameters() if (p.ndim < 2) == bias] for bias in (False, True)))

    task = make_task(group_of=biases_apart if apart else lambda name, p: 0)
    assert_same_steps(alone(task, lambda blocks: make(blocks[:1], blocks[1:])), of_module)


def test_every_allowed_optimizer_is_tested_above():
    assert set(SETTINGS) == set(ELEMENTWISE)


# --- what is refused ---


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor", "Muon", "SparseAdam"])
def test_optimizers_that_look_across_entries_are_refused(name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(TrainingError, match=rf"{name}.*across nodes.*allowed: SGD, Adam"):
        alone(make_task(), lambda blocks: getattr(torch.optim, name)(blocks, lr=0.1))


@pytest.mark.parametrize("name", ["MySGD", "Adam"])
def test_optimizers_of_a_user_are_refused_whatever_their_name(name):
    kind = type(name, (torch.optim.SGD,), {})
    refused(TrainingError, rf"{name} .*allowed", check_elementwise, kind([nn.Parameter(torch.zeros(2, 3))], lr=0.1))


# --- clipping ---


def test_clipping_is_torch_clipping_row_by_row():
    G = random_rows(8, 50) * torch.tensor([[0], [1e-308], [1e-3], [0.1], [1], [5], [1e2], [1e5]]).double()
    expected = []
    for row in G:
        parameter = nn.Parameter(torch.zeros(50, dtype=torch.float64))
        parameter.grad = row.clone()
        nn.utils.clip_grad_norm_([parameter], max_norm=2.0)
        expected.append(parameter.grad)
    before = G.clone()
    clip_rows(G, 2.0)
    # torch divides by norm + 1e-6, we by the norm: where it clips, norm > 2, that is at most 5e-7.
    torch.testing.assert_close(G, torch.stack(expected), rtol=5e-7, atol=0)
    short = before.norm(dim=1) <= 2
    assert short.tolist() == [True] * 4 + [False] * 4
    assert torch.equal(G[short], before[short])  # untouched, to the bit
    torch.testing.assert_close(G[~short].norm(dim=1), torch.full((4,), 2.0, dtype=torch.float64), rtol=1e-14, atol=0)


def test_a_clipped_run_is_that_of_clipped_modules():
    make = sgd(0.5, momentum=0.9)
    clip = float(alone(make_task(), make).step().gradients.norm(dim=1).median())  # some are longer
    assert_same_steps(alone(make_task(), make, clip=clip), lambda module: make(module.parameters()), clip=clip)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_norm_that_is_no_bound_is_refused(clip):
    refused(TrainingError, "clip", alone, make_task(), sgd(0.1), clip=clip)


# --- schedules ---


def cosine(steps):
    return [(1 + math.cos(math.pi * t / steps)) / 2 for t in range(steps)]


@cases(
    "steps, options, expected",
    (40, {"warmup": 0.1, "decay_at": (0.6, 0.85)}, [0, 1 / 4, 1 / 2, 3 / 4, *[1] * 20, *[0.1] * 10, *[0.01] * 6]),
    (100, {"warmup": 0.05, "warmup_from": 0.25}, [0.25, 0.4, 0.55, 0.7, 0.85, *[1] * 95]),
    (50, {"warmup": 0.2, "cosine": True}, [*(t / 10 for t in range(10)), *cosine(40)]),
    (20, {"cosine": True}, cosine(20)),
    (20, {"decay_at": (0.5, 0.75), "gamma": 0.3}, [*[1] * 10, *[0.3] * 5, *[0.09] * 5]),
    (5, {}, [1] * 5),
)
def test_schedules(steps, options, expected):
    at = factor(steps, **options)
    assert [at(t) for t in range(steps)] == pytest.approx(expected, rel=1e-12)


# --- row by row ---
COLUMNS = [(0, 5), (5, 12)]


def two_groups(X, name, options):
    """Two groups of columns, and an optimizer of them."""
    blocks = [nn.Parameter(X[:, first:last]) for first, last in COLUMNS]
    groups = [{"params": [block], "weight_decay": 0.1 * i} for i, block in enumerate(blocks)]
    return blocks, getattr(torch.optim, name)(groups, **options)


class Rows:
    """Rows that are stepped one by one."""

    def __init__(self, X, name, options):
        self.X = X
        self.blocks, optimizer = two_groups(X, name, options)
        self.optimizer = fuse_where_safe(optimizer, row_by_row=True)

    def step(self, G):
        step_rows(self.optimizer, self.blocks, COLUMNS, self.X, G)


@pytest.mark.numerics
@pytest.mark.parametrize(("name", "options"), ALL)
def test_it_is_the_step_of_all_rows_at_once(name, options):
    X, at_once = random_rows(4, 12), random_rows(4, 12)
    by_row = Rows(X, name, options)
    whole, optimizer = two_groups(at_once, name, options)
    for t in range(1, 6):
        G = random_rows(4, 12, seed=t)
        by_row.step(G)
        for block, (first, last) in zip(whole, COLUMNS, strict=True):
            block.grad = G[:, first:last].clone()
        optimizer.step()
        torch.testing.assert_close(X, at_once, rtol=0, atol=1e-14)
    # What is remembered has the form that it always had: a checkpoint does not know how steps were taken.
    ours, theirs = by_row.optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14, check_dtype=False)


@pytest.mark.numerics
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_row_does_not_know_how_many_others_there_are(name):
    """In float32 the fused kernels do, where they take all rows at once."""
    options = SETTINGS[name][-1]
    many = random_rows(5, 12, dtype=torch.float32)
    alone = many[3:4].clone()
    together, single = Rows(many, name, options), Rows(alone, name, options)
    for t in range(1, 5):
        G = random_rows(5, 12, t, torch.float32)
        together.step(G)
        single.step(G[3:4].clone())
    assert torch.equal(many[3:4], alone)
    assert together.optimizer.param_groups[0]["fused"]


# --- fused kernels ---
DECAY = {"lr": 0.01, "weight_decay": 0.1}
FUSED = [
    ("SGD", {"lr": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, **DECAY}),
    ("Adam", DECAY),
    ("AdamW", DECAY),
]
FUSED += [("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}), ("Adam", {"lr": 0.01, "amsgrad": True})]
FUSED += [("Adagrad", {"lr": 0.01})]
each_fused = pytest.mark.parametrize(("name", "options"), FUSED)


class InPieces(QuadraticTask):
    """Its gradients are a transposed view: the rows of G do not lie one after the other in memory."""

    def losses_and_gradients(self, X, nodes, step):
        losses, G = super().losses_and_gradients(X, nodes, step)
        return losses, G.T.contiguous().T


def with_optimizer(name, options, kind=None, **more):
    """A run on quadratics of some kind, or on a module with two blocks of columns in float32."""
    task = random_quadratics(NODES, dim=9, noise=0.2)
    task = make_task(group_of=biases_apart, dtype=torch.float32) if kind is None else kind(task.A, task.b, task.noise)
    return alone(task, lambda blocks: getattr(torch.optim, name)(blocks, **options, **more))


@each_fused
@pytest.mark.parametrize("kind", [QuadraticTask, InPieces])
def test_fused_optimizers_do_what_the_others_do(name, options, kind):
    fused, plain = with_optimizer(name, options, kind, fused=True), with_optimizer(name, options, kind)
    assert not plain.optimizer.param_groups[0]["fused"]  # not chosen: the digits of float64 rows know only their row
    torch.testing.assert_close(stepped(fused, 20).X, stepped(plain, 20).X, rtol=0, atol=1e-12)


@each_fused
def test_rows_in_one_block_are_fused_unless_they_are_in_double_precision(name, options):
    for dtype, chosen in ((torch.float32, True), (torch.float64, None)):
        rows = [nn.Parameter(torch.zeros(3, 5, dtype=dtype))]
        assert fuse_where_safe(getattr(torch.optim, name)(rows, **options)).param_groups[0]["fused"] is chosen


@each_fused
def test_several_blocks_of_columns_are_not_fused(name, options):
    """On them the fused kernels would change the wrong entries."""
    free, plain = with_optimizer(name, options), with_optimizer(name, options, foreach=False, fused=False)
    assert not any(group["fused"] for group in free.optimizer.param_groups)
    assert len(free.optimizer.param_groups[0]["params"]) == 2
    torch.testing.assert_close(stepped(free, 5).X, stepped(plain, 5).X, rtol=0, atol=1e-6)
    with pytest.raises(TrainingError, match=r"fused=True does not work on one of several blocks.*leave it out"):
        with_optimizer(name, options, fused=True)


def test_what_the_caller_has_chosen_stays():
    for choice in ({"foreach": True}, {"fused": False}, {"differentiable": True}):
        training = with_optimizer("SGD", {"lr": 0.01}, QuadraticTask, **choice)
        assert not training.optimizer.param_groups[0]["fused"]
