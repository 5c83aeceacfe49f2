"""Models by name, with parameters that depend on a seed."""

from __future__ import annotations

from typing import Any

from torch import nn

from mixwise import parts
from mixwise.models.factory import seeded


def build(name: str, /, *, seed: int, **options: Any) -> nn.Module:
    """The model called `name`, with parameters that depend on the seed and on nothing else.

    Args:
        name: what a recipe names as `task.model.kind`.
        seed: of the initial parameters.
        options: arguments of the model's factory.

    >>> build("logistic", seed=0, features=64, classes=10)[-1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    factory = parts.build("model", {"kind": name, **options}, f"model {name}")
    module: nn.Module = seeded(lambda: parts.supply(factory), seed)
    return module
