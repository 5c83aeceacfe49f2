"""Building models: by name, with parameters that depend on a seed only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from mixwise import parts

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
        torch.default_generator.manual_seed(seed)
        return factory()
