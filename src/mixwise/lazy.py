"""Packages whose names are imported when they are first used, so that light commands stay light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `where` says which module holds each name, or is the name."""

    def look(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(where[name])
        value = module if where[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # so that it is looked up once
        return value

    return look
