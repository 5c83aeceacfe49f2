"""Building models, with parameters that depend on a seed only, and networks of plain layers.

The networks are fully connected ones, for samples of any shape, and the small CNN of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import index
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import MinLen
from torch import nn

from mixwise import parts
from mixwise.errors import TrainingError
from mixwise.parts import Count, part

Module = TypeVar("Module", bound=nn.Module)


def build(name: str, /, *, seed: int, **options: Any) -> nn.Module:
    """Build the model called `name`, with parameters that depend on the seed only.

    Args:
        name: as in a recipe, `task.model.kind`.
        seed: of the initial parameters.
        options: arguments of the model's factory.

    >>> build("logistic", seed=0, features=64, classes=10)[-1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    factory = parts.build("model", {"kind": name, **options}, f"model {name}")
    module: nn.Module = seeded(lambda: parts.supply(factory), seed)
    return module


def seeded(factory: Callable[[], Module], seed: int) -> Module:
    """Call `factory` with torch's generator seeded, and restore the generator afterwards.

    A factory draws its initial parameters from torch's CPU generator, as every `nn.Module` does. Here it does so on the
    CPU whatever the default device is, so that one seed means the same parameters on every device: move them later.

    >>> a, b = (seeded(lambda: nn.Linear(3, 2), seed=7) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which also seeds the generators of the GPUs, and those would not be restored.
        torch.default_generator.manual_seed(index(seed))  # also an integer of NumPy
        return factory()


@part("mlp", "model", title="multilayer perceptron")
def mlp(
    sizes: Annotated[Sequence[Count], MinLen(2)] | None = None, features: Count = 784, classes: Count = 10
) -> nn.Sequential:
    """Linear layers between the given sizes, with ReLU between the layers.

    Args:
        sizes: features of a sample, units of each hidden layer, classes; by default one hidden layer of 128 units.
        features, classes: without sizes; in a recipe, those of the data.

    >>> [layer.out_features for layer in mlp((784, 128, 10)) if isinstance(layer, nn.Linear)]
    [128, 10]
    """
    sizes = (features, 128, classes) if sizes is None else sizes
    first, *rest = (nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))
    hidden = (layer for linear in rest for layer in (nn.ReLU(), linear))
    return nn.Sequential(nn.Flatten(), Expect(sizes[0]), first, *hidden)


@part("logistic", "model", title="logistic regression")
def logistic_regression(features: Count, classes: Count) -> nn.Sequential:
    """One linear layer: with the cross-entropy loss, a convex problem.

    Args:
        features: the size of a sample, the product of all its dimensions.
        classes: the number of logits.
    """
    return mlp((features, classes))


@part("small-cnn", "model", title="small CNN")
def small_cnn(
    classes: Count = 10, channels: Count = 3, image_height: Count = 16, image_width: Count = 16
) -> nn.Sequential:
    """Three 3×3 convolutions with GroupNorm and ReLU and a linear layer; 19,626 parameters for 16×16 images.

    Shapes of a sample: (3, 16, 16), (16, 16, 16), (32, 8, 8), (32, 4, 4), 512, 10. Layers have torch's initialization.
    The results of the recipe `cifar10-small` depend on this network.

    Args:
        classes: the number of logits.
        channels, image_height, image_width: of the images; in a recipe, those of the data.
    """
    layers: list[nn.Module] = []
    for inputs, outputs, stride, groups in ((channels, 16, 1, 4), (16, 32, 2, 8), (32, 32, 2, 8)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.GroupNorm(groups, outputs), nn.ReLU()]
    features = 32 * -(-image_height // 4) * -(-image_width // 4)  # two of the convolutions have stride 2
    expect = Expect(channels, image_height, image_width)
    return nn.Sequential(expect, *layers, nn.Flatten(), nn.Linear(features, classes))


class Expect(nn.Module):
    """The identity on samples of one shape; rejects all others with a clear error."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the samples x (N, *shape), unchanged."""
        if (found := tuple(x.shape[1:])) != self.shape:
            raise TrainingError(f"samples of shape {found}; this model takes {self.shape}: resize the data")
        return x

    def extra_repr(self) -> str:
        """Return the shape."""
        return ", ".join(map(str, self.shape))
