"""Numbers of steps and the like."""

from __future__ import annotations

from numbers import Integral

from mixwise.errors import TrainingError


def check_counts(**counts: object) -> None:
    """Refuse what is not a whole number of at least 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise TrainingError(f"{name} = {value!r}; give a whole number of at least 1, such as {name}=10")
