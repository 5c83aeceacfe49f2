"""Calls of methods that change rows in place."""

from __future__ import annotations

from collections.abc import Callable

from mixwise.errors import TrainingError, kind_of


def call_in_place(method: Callable[..., object], rows: str, *arguments: object) -> None:
    """Call a method that changes `rows` in place, and reject a result, which nothing would read."""
    returned = method(*arguments)
    if returned is not None:
        name = f"{type(getattr(method, '__self__', None)).__name__}.{getattr(method, '__name__', method)}"
        raise TrainingError(
            f"{name} returned {kind_of(returned)}, which nothing reads; change the rows in place and return None: "
            f"{rows}.copy_(result)"
        )
