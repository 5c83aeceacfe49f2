"""The public names of mixwise: what stands in `__all__` of the package and of its public parts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import mixwise

# Packages that are not in `mixwise.__all__`.
FURTHER = ("mixwise.experiments", "mixwise.parts", "mixwise.protocols", "mixwise.training")


def packages() -> list[ModuleType]:
    """The package, the parts in its `__all__`, and the further ones."""
    parts = [value for name in mixwise.__all__ if isinstance(value := getattr(mixwise, name), ModuleType)]
    return [mixwise, *parts, *map(import_module, FURTHER)]


def public_names() -> Iterator[tuple[str, object]]:
    """Every public name with its package in front, and what it stands for."""
    for package in packages():
        for name in getattr(package, "__all__", [n for n in vars(package) if not n.startswith("_")]):
            value = getattr(package, name)
            if isinstance(value, ModuleType) or getattr(value, "__module__", "mixwise").startswith("mixwise"):
                yield f"{package.__name__}.{name}", value


def missing_names(documented: set[str]) -> list[str]:
    """Public names that are not described, under this or, for a class or function, another of their names."""
    described = {id(value) for name, value in public_names() if name in documented and hasattr(value, "__name__")}
    return sorted(name for name, value in public_names() if name not in documented and id(value) not in described)
