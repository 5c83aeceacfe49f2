"""What a training task offers: a starting point, losses and gradients of the nodes, and figures of merit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Others(Protocol):
    """The way to the nodes whose rows are elsewhere; every process must ask the same in the same order.

    A `Network` is one. Without one, all rows are here: `AllHere`.
    """

    nodes: range  # those whose rows are here

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Small rows (m, k) of all nodes, (n, k)."""
        ...

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean (d,) over the rows of all nodes."""
        ...


class Task(Protocol):
    """One objective f = (1/n) Σ f_i, split over n nodes.

    A task whose columns fall into several optimizer groups also has `blocks`: the (start, stop) of each group. One that
    remembers more than the rows has `state()` and `load_state(state)`, tensors by name, for checkpoints; `of_nodes`,
    how the names of those begin that have a row per owned node (the others are the same on all processes); and
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

    def evaluate(self, X: torch.Tensor, others: Others | None = None) -> dict[str, float]:
        """Figures of merit over the rows of all nodes, X (m, d) and those of the others, by metric name."""
        ...


class AllHere:
    """No others."""

    def __init__(self, nodes: int) -> None:
        self.nodes = range(nodes)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves."""
        return rows

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Their mean."""
        return rows.mean(dim=0)
