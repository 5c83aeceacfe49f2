"""Rows as they are: what records, checkpoints and messages about a run itself read through a network.

Legend: m owned nodes; h nodes that are measured, all n unless some are hostile; rows (m, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix

if TYPE_CHECKING:
    from mixwise.protocols import Network


class Measuring:
    """A view of a network in which nothing is counted, lost, attacked, rounded or checked; for measurements.

    All processes must make the same calls in the same order.

    Args:
        network: a network that does none of these things.
        measured: the nodes that measurements are about, in a simulation with hostile ones; all by default.

    Attributes:
        nodes: the nodes whose rows are here.
        size: h, the rows that `gather` returns.
    """

    def __init__(self, network: Network, measured: IntArray | None = None) -> None:
        self.network, self.nodes = network, network.nodes
        self._measured = None if measured is None else torch.from_numpy(measured)
        self.size = network.graph.n if measured is None else len(measured)

    def of(self, measured: IntArray) -> Measuring:
        """Return the view of some of the nodes of a simulation."""
        return Measuring(self.network, measured)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the small rows (h, k) of the measured nodes, on every process."""
        return self._chosen(self.network.gather(rows))

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean (d,) of the rows of the measured nodes."""
        return self.network.average(self._chosen(rows))

    def mix(self, rows: torch.Tensor, rounds: Sequence[MixingMatrix]) -> torch.Tensor:
        """Return the owned rows of (W₁W₂⋯)ᵀ X, in a new tensor."""
        mixed = rows.clone()
        for W in rounds:
            self.network.mix(mixed, W, out=mixed)
        return mixed

    def _chosen(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self._measured is None else rows[self._measured]
