"""Inputs that are not one tensor in memory: texts of different lengths, images that are decoded on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

import torch

Request: TypeAlias = tuple[torch.Tensor, int | None]  # the arguments of `Samples.take`


class Samples(Protocol):
    """The inputs of N samples, read on demand.

    A class that inherits from this one needs `kind`, `__len__`, `take` and `subset`.
    """

    @property
    def kind(self) -> str:
        """A description of one sample; training and test data must have the same."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """Return the inputs at these positions as one batch (b, …) on the CPU.

        Args:
            indices: int64 (b,), in any order.
            draws: the seed of random augmentation, for training; None returns the samples as evaluation sees them.
        """
        ...

    def subset(self, indices: torch.Tensor) -> Samples:
        """Return the samples at these positions, in this order, without reading them."""
        ...

    def stream(self, requests: Iterable[Request]) -> Iterator[torch.Tensor]:
        """Yield the batch of each request, in order; an implementation may read ahead in other processes."""
        for indices, draws in requests:
            yield self.take(indices, draws)
