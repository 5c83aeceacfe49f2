"""The other nodes, as an evaluation sees them."""

from __future__ import annotations

from typing import Protocol

import torch


class Others(Protocol):
    """Access to the rows of other processes, which must all make the same calls in the same order.

    A `Network` is one. Without one, all rows are in this process: `AllHere`.
    """

    nodes: range  # those whose rows are here

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the small rows (m, k) of all nodes, (n, k)."""
        ...

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean (d,) over the rows of all nodes."""
        ...


class AllHere:
    """All nodes are in this process."""

    def __init__(self, nodes: int) -> None:
        self.nodes = range(nodes)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows themselves."""
        return rows

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return their mean."""
        return rows.mean(dim=0)
