"""No sketch at all: the exact inner products, at the price of sending whole rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.errors import SketchError
from mixwise.parts import part
from mixwise.sketch.base import Rows, check_piece, check_rows, sketch_dtype


@part("exact", "sketch", title="exact updates", former={"dim": None})
@dataclass(frozen=True)
class ExactSketch:
    """S = u. The rows themselves, not a copy, unless they are shorter than float32.

    >>> ExactSketch()(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    @property
    def dim(self) -> None:
        """A sketch is as long as the row."""
        return

    def width(self, d: int) -> int:
        """d."""
        return d

    def fresh(self, t: int) -> ExactSketch:
        """Itself: there is nothing to draw."""
        return self

    def __call__(self, G: Rows) -> Rows:
        """The rows (m, d)."""
        check_rows(G)
        if isinstance(G, torch.Tensor):
            return G.detach().to(sketch_dtype(G))
        return G.astype(sketch_dtype(G), copy=False)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The rows put together again: as long as they are, so that nothing is saved by their coming in pieces."""
        parts: list[Rows] = []
        for number, piece in enumerate(pieces):
            check_piece(piece, parts[0] if parts else None, number)
            parts.append(piece.detach().clone() if isinstance(piece, torch.Tensor) else piece.copy())
        if not parts:
            raise SketchError("no piece of any row came; a sketch takes rows of length 1 or more")
        if isinstance(parts[0], torch.Tensor):
            return self(torch.cat(parts, 1))
        return self(np.concatenate(parts, 1))
