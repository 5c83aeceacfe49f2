"""All n nodes in one process: a gossip step sums rows of one tensor; optionally, some messages are lost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.links import IntArray, Links
from mixwise.network.sums import mix_rows
from mixwise.network.traffic import LONG_ROW, Cargo, Packing, Traffic, average_bytes, message_bytes
from mixwise.network.wire import Wire, as_wire_dtype
from mixwise.seeding import numpy_generator


class SimulatedNetwork:
    """A network whose n nodes are the rows of one tensor.

    >>> from mixwise.graphs import Graph
    >>> from mixwise.mixing import metropolis_hastings
    >>> pair = Graph(2, [(0, 1)])
    >>> SimulatedNetwork(pair).mix(torch.tensor([[0.0], [1.0]]), metropolis_hastings(pair)).tolist()
    [[0.5], [0.5]]

    Args:
        graph: the communication graph.
        links: how long messages take, to count simulated time.
        wire_dtype: torch.bfloat16 or torch.int8: rows are rounded for the message (see `mixwise.network.wire`).
    """

    _averages = True  # whether W = J is counted as an average

    def __init__(self, graph: Graph, links: Links | None = None, wire_dtype: torch.dtype | None = None) -> None:
        self.graph, self.links, self.wire_dtype = graph, links, as_wire_dtype(wire_dtype)
        self.nodes = range(graph.n)
        self.traffic = Traffic()
        self.step: int | None = None

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Wᵀ X; a row travels along every arc with a non-zero weight, unless W = J, which is an average."""
        return self._start(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Arrived:
        """Nothing has to travel, so it could be done at once."""
        return self._start(rows, W, None)

    def _start(self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None) -> Arrived:
        if rows.ndim != 2 or len(rows) != W.n:
            raise MixingError(f"rows of shape {tuple(rows.shape)} cannot be mixed by a matrix for {W.n} nodes")
        if self._averages and W.is_average and packing is None:
            self._count_average(message_bytes(rows, None))
            return Arrived(rows, W.graph, W.weights)
        wire = Wire.of(rows, self.wire_dtype) if packing is None else None
        size = message_bytes(rows, packing or wire)
        self.traffic.parameters += W.messages * size
        weights, pattern = self._arriving(W), W.graph.pattern
        if self.links is not None:
            used = (pattern.rows != pattern.cols) & (weights != 0)
            self.traffic.seconds += self.links.round(pattern.rows[used], pattern.cols[used], size)
        if wire is not None:
            return Arrived(wire.rounded(rows), W.graph, weights, rows)
        return Arrived(rows, W.graph, weights)

    def _arriving(self, W: MixingMatrix) -> FloatArray:
        """The weights of the messages that arrive, in the order of `W.graph.pattern`."""
        return W.weights

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """The same rows in the order of their receivers."""
        order = graph.arcs.by_receiver
        if messages.ndim != 2 or len(messages) != len(order):
            raise MixingError(f"messages of shape {tuple(messages.shape)} for {len(order)} arcs; one row each")
        wire = Wire.of(messages, self.wire_dtype) if cargo == "parameters" else None
        size = message_bytes(messages, wire)
        self.traffic.add(cargo, len(messages) * size)
        if wire is not None:
            messages = wire.rounded(messages)
        if self.links is not None:
            self.traffic.seconds += self.links.round(graph.arcs.senders, graph.arcs.receivers, size)
        return messages[torch.tensor(order, device=messages.device)]  # a copy: the graph's order is read-only

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves: all of them are here. Counted as an all-gather: each row reaches n − 1 nodes."""
        self.traffic.sketches += (len(rows) - 1) * rows.numel() * rows.element_size()
        if self.links is not None:
            self.traffic.seconds += self.links.gather(self.graph, rows[0].numel() * rows.element_size())
        return rows

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean row."""
        self._count_average(rows.shape[1] * rows.element_size())
        return rows.mean(dim=0)

    def _count_average(self, size: int) -> None:
        """In parts, as an all-reduce; short rows whole, as a gather."""
        self.traffic.parameters += average_bytes(self.graph.n, size)
        if self.links is not None:
            seconds = self.links.average if size >= LONG_ROW else self.links.gather
            self.traffic.seconds += seconds(self.graph, size)

    def uncounted(self) -> AbstractContextManager[None]:
        """Traffic inside is not counted."""
        return self.traffic.unchanged()


@dataclass(frozen=True)
class Arrived:
    """A gossip step of rows that are all in this process; the weights need not be those of a mixing matrix.

    If the rows were rounded for the message, `exact` are the rows themselves.
    """

    rows: torch.Tensor
    graph: Graph
    weights: FloatArray  # one per entry of graph.pattern
    exact: torch.Tensor | None = None

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wᵀ X, in a new tensor or in `out`, which may be X itself."""
        if self.exact is not None:
            out = self.exact.clone() if out is None else out.copy_(self.exact)
            self.move(out)
            return out
        out = torch.empty_like(self.rows, memory_format=torch.contiguous_format) if out is None else out
        mix_rows(self.rows, self.graph, self.weights, out)
        return out

    def move(self, rows: torch.Tensor) -> None:
        """rows + (W − I)ᵀ X, rounded as processes round it."""
        loops = self.graph.pattern.rows == self.graph.pattern.cols
        mix_rows(self.rows, self.graph, self.weights - loops, rows, add=True)


class LossyNetwork(SimulatedNetwork):
    """A simulated network in which every arc i → j fails with probability `loss` in a step, with all its messages.

    In a gossip step, the receiver uses its own row in place of one that is lost: its weights still sum to 1, although
    the mean over the nodes moves a little. Pushed mass (kind="sender") is gone, and a relayed sum is lost together with
    its count. The small sketches always arrive, as if they were sent again until they do.

    Args:
        graph: the communication graph.
        loss: the probability that an arc fails, in [0, 1).
        seed: of the draws; the arcs that fail are a function of the seed and the step.
        links: how long messages take, to count simulated time.
        wire_dtype: as in `SimulatedNetwork`.
    """

    _averages = False  # rows are lost, not parts of sums

    def __init__(
        self,
        graph: Graph,
        loss: float,
        seed: int = 0,
        links: Links | None = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(graph, links, wire_dtype)
        if not 0 <= loss < 1:
            raise MixingError(f"loss = {loss}; the share of messages that are lost lies in [0, 1)")
        self.loss, self.seed = loss, seed

    def _arriving(self, W: MixingMatrix) -> FloatArray:
        """Remove lost messages; a lost weight goes to the receiver's own row, or is gone if kind="sender"."""
        pattern = W.graph.pattern
        lost = self._lost(pattern.rows, pattern.cols) & (W.weights != 0)
        weights = np.where(lost, 0.0, W.weights)
        if W.kind == "doubly":
            loops = np.flatnonzero(pattern.rows == pattern.cols)
            np.add.at(weights, loops[pattern.cols[lost]], W.weights[lost])
        return weights

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """Return zeros in place of rows that are lost; sketches arrive."""
        if cargo == "parameters":
            lost = self._lost(graph.arcs.senders, graph.arcs.receivers)
            messages = messages.masked_fill(torch.from_numpy(lost).to(messages.device)[:, None], 0)
        return super().exchange(messages, graph, cargo=cargo)

    def _lost(self, senders: IntArray, receivers: IntArray) -> npt.NDArray[np.bool_]:
        """Which arcs fail in the current step."""
        n = self.graph.n
        draws = numpy_generator(self.seed, "message loss", self.step or 0).random((n, n))
        lost: npt.NDArray[np.bool_] = (draws[senders, receivers] < self.loss) & (senders != receivers)
        return lost
