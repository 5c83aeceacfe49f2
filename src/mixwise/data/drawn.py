"""A part of a data set, drawn once and for all."""

from __future__ import annotations

from mixwise.errors import DataError
from mixwise.seeding import numpy_generator


def drawn(total: int, count: int | None, option: str, where: str) -> list[int]:
    """Which samples to take, in order; the same ones whatever the seed of a run is, so that they are prepared once."""
    if count is None:
        return list(range(total))
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= total:
        raise DataError(f"{option} = {count!r}; {where} has {total} samples: give a number from 1 to {total}")
    return sorted(numpy_generator(0, "drawn").permutation(total)[:count].tolist())
