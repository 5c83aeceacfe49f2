"""What a training task offers: a starting point, losses and gradients of the nodes, and figures of merit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Task(Protocol):
    """One objective f = (1/n) Σ f_i, split over n nodes.

    A task whose columns fall into several optimizer groups also has `blocks`: the (start, stop) of each group. One that
    remembers more than the rows has `state()` and `load_state(state)`, tensors by name, for checkpoints; and
    `mixed_buffers`, a tensor (m, b) or None, if some of that is to be mixed, in place, as the parameters are.
    """

    nodes: int  # n
    dim: int  # d

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """The starting rows of these nodes, (m, d)."""
        ...

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses (m,) and stochastic gradients (m, d) of these nodes at their own rows X (m, d)."""
        ...

    def evaluate(self, X: torch.Tensor) -> dict[str, float]:
        """Figures of merit of the rows X, by metric name."""
        ...
