"""Inputs that are not one tensor in memory: texts of different lengths, images that are decoded when needed."""

from __future__ import annotations

from typing import Protocol

import torch


class Samples(Protocol):
    """The inputs of N samples, read when they are asked for."""

    @property
    def kind(self) -> str:
        """What one sample is, in words; training and test data must agree in it."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """The inputs at these positions as one batch (b, …) on the CPU.

        Args:
            indices: int64 (b,), in any order.
            draws: a seed for random changes, as training wants them; without one, the samples as they are judged.
        """
        ...

    def subset(self, indices: torch.Tensor) -> Samples:
        """The samples at these positions, in this order; nothing is read for it."""
        ...

    def expect(self, indices: torch.Tensor, draws: int | None = None) -> None:
        """This batch will be taken soon; whoever can read ahead may do so."""
        ...
