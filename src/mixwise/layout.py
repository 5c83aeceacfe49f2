"""The columns of a model's parameters in its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Slot:
    """The columns of one parameter."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    def view(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the parameter of one node, `shape`, from its row (d,); or of all, (m, *shape), from rows (m, d)."""
        part = rows[..., self.start : self.stop]
        return part.view(part.shape[:-1] + self.shape)


class Layout:
    """The columns of a row.

    Args:
        dim: d, the length of a row.
        groups: (start, stop) of the columns of each optimizer group; one group by default.
        slots: the parameters, if the row is that of a model.
    """

    def __init__(self, dim: int, groups: Sequence[tuple[int, int]] | None = None, slots: Sequence[Slot] = ()) -> None:
        self.dim, self.slots = dim, tuple(slots)
        self.groups = ((0, dim),) if groups is None else tuple(groups)
