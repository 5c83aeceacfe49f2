"""No sketch at all: the exact inner products, at the price of sending whole rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.sketch.base import Rows, check_rows, sketch_dtype


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
