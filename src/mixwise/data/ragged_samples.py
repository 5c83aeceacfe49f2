"""Samples of different lengths, padded to the longest of their batch: tokens of texts, and features made of them."""

from __future__ import annotations

import copy
from typing import Self

import numpy as np
import torch

from mixwise.data.ragged import Ragged
from mixwise.data.samples import Samples


class RaggedSamples(Samples):
    """Rows of a `Ragged`, all of them or those at `index`; what makes them `Samples`, their kind aside."""

    def __init__(self, rows: Ragged, pad: int, index: torch.Tensor | None = None) -> None:
        self.rows, self.pad = rows, pad
        self.index = torch.arange(len(rows)) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """One batch (b, L, …), L the longest of these samples; nothing here is random."""
        found = [self.rows[row] for row in self.index[indices].tolist()]
        shape = (len(found), max((len(row) for row in found), default=0), *self.rows.values.shape[1:])
        batch = np.full(shape, self.pad, self._dtype())
        for place, row in zip(batch, found, strict=True):
            place[: len(row)] = row
        return torch.from_numpy(batch)

    def subset(self, indices: torch.Tensor) -> Self:
        """The samples at these positions, in this order."""
        part = copy.copy(self)
        part.index = self.index[indices]
        return part

    def _dtype(self) -> np.dtype[np.generic]:
        return self.rows.values.dtype


class FeatureSamples(RaggedSamples):
    """What enters a block of a model, (b, L, h) of floating point numbers; positions that are only padding are 0.

    Args:
        rows: (T, h).
        index: which of them; all by default.
    """

    def __init__(self, rows: Ragged, index: torch.Tensor | None = None) -> None:
        super().__init__(rows, 0, index)

    @property
    def kind(self) -> str:
        """What one sample is."""
        return f"features of {self.rows.values.shape[1]} numbers per token"
