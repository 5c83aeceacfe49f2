"""The identity: exact inner products, at the cost of sending whole rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.parts import part
from mixwise.sketch.base import Rows, check_rows, checked_pieces, sketch_dtype


@part("exact", "sketch", title="exact updates", former={"dim": None})
@dataclass(frozen=True)
class ExactSketch:
    """S = u: the rows themselves, not a copy, unless they are shorter than float32.

    >>> ExactSketch()(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    @property
    def dim(self) -> None:
        """None: a sketch is as long as the row."""
        return

    def width(self, d: int) -> int:
        """d, the length of the row."""
        return d

    def fresh(self, t: int) -> ExactSketch:
        """The sketch itself, which has no random draws."""
        return self

    def __call__(self, G: Rows) -> Rows:
        """The rows G (m, d)."""
        check_rows(G)
        if isinstance(G, torch.Tensor):
            return G.detach().to(sketch_dtype(G))
        return G.astype(sketch_dtype(G), copy=False)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The rows put together again, at full length."""
        like, pieces = checked_pieces(pieces)
        if isinstance(like, torch.Tensor):
            return self(torch.cat([piece.detach().clone() for piece in pieces], 1))
        return self(np.concatenate([piece.copy() for piece in pieces], 1))
