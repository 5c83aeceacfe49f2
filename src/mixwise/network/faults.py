"""A simulated network that loses messages, to see which methods can bear it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.links import Links
from mixwise.network.simulated import SimulatedNetwork
from mixwise.network.traffic import Cargo
from mixwise.seeding import numpy_generator


class LossyNetwork(SimulatedNetwork):
    """Every arc i → j fails with probability `loss` in a step, and then all that i sends to j in this step is lost.

    What a receiver does: in a gossip step its own row stands in for the one that is missing, so that its weights still
    sum to 1, though the mean of the nodes moves a little; pushed mass (kind="sender") is gone; a relayed sum is missing
    together with its count. The small sketches are taken to arrive, as if they were sent again until they do.
    """

    _averages = False  # rows are lost, not parts of sums

    def __init__(self, graph: Graph, loss: float, seed: int = 0, links: Links | None = None) -> None:
        super().__init__(graph, links)
        if not 0 <= loss < 1:
            raise MixingError(f"loss = {loss}; the share of messages that are lost lies in [0, 1)")
        self.loss, self.seed = loss, seed

    def _arriving(self, W: MixingMatrix) -> FloatArray:
        """W without the lost messages; a lost weight goes to the receiver's own row, or is gone if kind="sender"."""
        pattern = W.graph.pattern
        lost = self._lost(pattern.rows, pattern.cols) & (W.weights != 0)
        weights = np.where(lost, 0.0, W.weights)
        if W.kind == "doubly":
            np.add.at(weights, _loops(W.graph)[pattern.cols[lost]], W.weights[lost])
        return weights

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """Zeros stand for what is lost; sketches arrive."""
        if cargo == "parameters":
            arcs = graph.pattern.rows != graph.pattern.cols
            lost = self._lost(graph.pattern.rows[arcs], graph.pattern.cols[arcs])
            messages = messages.masked_fill(torch.from_numpy(lost).to(messages.device)[:, None], 0)
        return super().exchange(messages, graph, cargo=cargo)

    def _lost(self, senders: npt.NDArray[np.int64], receivers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which arcs fail in the step that is under way: the same ones whenever it is asked."""
        n = self.graph.n
        draws = numpy_generator(self.seed, "message loss", self.step or 0).random((n, n))
        lost: npt.NDArray[np.bool_] = (draws[senders, receivers] < self.loss) & (senders != receivers)
        return lost


def _loops(graph: Graph) -> npt.NDArray[np.int64]:
    """Where the weight W[i, i] stands among the weights, for each i."""
    return np.flatnonzero(graph.pattern.rows == graph.pattern.cols)
