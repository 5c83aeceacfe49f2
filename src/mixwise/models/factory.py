"""What the factories share: parameters that come from a seed, sizes that are checked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from mixwise.errors import ConfigError, TrainingError

Module = TypeVar("Module", bound=nn.Module)


def seeded(factory: Callable[[], Module], seed: int) -> Module:
    """The module that `factory` makes when torch's generator starts from `seed`; the generator is put back afterwards.

    A factory draws its initial parameters from torch's CPU generator, as every `nn.Module` does. Here it does so on the
    CPU whatever the default device is, so that one seed means the same parameters on every device: move them later.

    >>> a, b = (seeded(lambda: nn.Linear(3, 2), seed=7) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: that one also seeds the generators of the GPUs, which nothing would put back.
        torch.default_generator.manual_seed(seed)
        return factory()


def checked_size(name: str, value: object) -> int:
    """`value` as an int, if it is a whole number and 1 or larger."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ConfigError(f"{name} = {value!r}; it must be an integer, 1 or larger")
    return number


class Expect(nn.Module):
    """The identity on samples of one shape; refuses all others, before they become a puzzle about matrix products."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The samples x (N, *shape), unchanged."""
        if tuple(x.shape[1:]) != self.shape:
            raise TrainingError(
                f"samples of shape {tuple(x.shape[1:])}; this model takes {self.shape}: "
                "resize the data or build the model for their size"
            )
        return x

    def extra_repr(self) -> str:
        """The shape."""
        return ", ".join(map(str, self.shape))
