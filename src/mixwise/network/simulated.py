"""All n nodes in one process: a gossip step sums rows of one tensor."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch

from mixwise.errors import MixingError, kind_of
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.links import Links
from mixwise.network.measuring import Measuring
from mixwise.network.sums import mix_rows
from mixwise.network.traffic import ROWS, Arrivals, Cargo, Packing, Traffic, average_bytes, message_bytes
from mixwise.network.values import check_dtype, check_leaving, check_lengths
from mixwise.network.wire import Wire, as_wire_dtype


class SimulatedNetwork:
    """A network whose n nodes are the rows of one tensor.

    >>> from mixwise.graphs import Graph
    >>> from mixwise.mixing import metropolis_hastings
    >>> pair = Graph(2, [(0, 1)])
    >>> SimulatedNetwork(pair).mix(torch.tensor([[0.0], [1.0]]), metropolis_hastings(pair)).tolist()
    [[0.5], [0.5]]

    Args:
        graph: the communication graph, a spec such as "ring:8", or a networkx graph.
        links: how long messages take, to count simulated time.
        wire_dtype: torch.bfloat16 or torch.int8: rows are rounded for the message (see `mixwise.network.wire`).
    """

    def __init__(self, graph: GraphLike, links: Links | None = None, wire_dtype: torch.dtype | None = None) -> None:
        self.graph, self.links, self.wire_dtype = as_graph(graph), links, as_wire_dtype(wire_dtype)
        self.nodes = range(self.graph.n)
        self.traffic = Traffic()
        self.step: int | None = None
        self.checks = True  # whether rows must be fit to be mixed

    def begin(self, step: int) -> None:
        """Begin a step, which error messages name."""
        self.step = step

    def uncounted(self) -> SimulatedNetwork:
        """Return this network with a counter of its own."""
        view = copy(self)
        view.traffic = Traffic()
        return view

    def measuring(self) -> Measuring:
        """Return the view for measurements."""
        view = self.uncounted()
        view.wire_dtype, view.links, view.checks = None, None, False
        return Measuring(view)

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Wᵀ X; a row travels along every arc with a non-zero weight, unless W = J, which is an average."""
        return self._start(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Arrived:
        """Nothing has to travel, so it could be done at once."""
        return self._start(rows, W, None)

    def _start(self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None) -> Arrived:
        check_dtype(rows)
        if not isinstance(W, MixingMatrix):
            raise MixingError(f"W is {kind_of(W)}; pass a mixing matrix, such as MixingMatrix.from_dense(W, graph)")
        if rows.ndim != 2 or len(rows) != W.n:
            raise MixingError(f"rows of shape {tuple(rows.shape)} cannot be mixed by a matrix for {W.n} nodes")
        if W.is_average and packing is None:
            self._check_leaving(rows, self.nodes)
            self._count_average(message_bytes(rows, None))
            return Arrived(rows, W.graph, W.weights)
        size, pattern = self.row_bytes(rows, packing), W.graph.pattern
        self.traffic.parameters += W.messages * size
        if self.links is not None:
            used = (pattern.rows != pattern.cols) & (W.weights != 0)
            self.traffic.seconds += self.links.round(pattern.rows[used], pattern.cols[used], size)
        return self.arrived(rows, W.graph, W.weights, packing)

    def row_bytes(self, rows: torch.Tensor, packing: Packing | None = None) -> int:
        """Bytes of one of these rows on the wire."""
        return message_bytes(rows, packing or Wire.of(rows, self.wire_dtype))

    def arrived(self, rows: torch.Tensor, graph: Graph, weights: FloatArray, packing: Packing | None = None) -> Arrived:
        """A gossip step that is not counted, with weights that need not be those of a mixing matrix."""
        wire = Wire.of(rows, self.wire_dtype) if packing is None else None
        sent = rows if wire is None else wire.rounded(rows)
        if self.checks:
            check_lengths(sent, graph, weights, self.step)
        return Arrived(sent, graph, weights, None if wire is None else rows)

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = ROWS) -> Arrivals:
        """The same rows in the order of their receivers."""
        order = graph.arcs.by_receiver
        if messages.ndim != 2 or len(messages) != len(order):
            raise MixingError(f"messages of shape {tuple(messages.shape)} for {len(order)} arcs; one row each")
        wire = Wire.of(messages, self.wire_dtype) if cargo.counted == "parameters" else None
        size = message_bytes(messages, wire)
        self.traffic.add(cargo, len(messages) * size)
        if wire is not None:
            messages = wire.rounded(messages)
        if cargo.counted == "parameters":
            self._check_leaving(messages, graph.arcs.senders)
        if self.links is not None:
            self.traffic.seconds += self.links.round(graph.arcs.senders, graph.arcs.receivers, size)
        at = torch.tensor(order, device=messages.device)  # a copy: the order is read-only
        return Arrivals(messages.index_select(0, at))

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves: all of them are here. Counted as an all-gather: each row reaches n − 1 nodes."""
        self.traffic.sketches += (len(rows) - 1) * rows.numel() * rows.element_size()
        if self.links is not None:
            self.traffic.seconds += self.links.gather(self.graph, rows[0].numel() * rows.element_size())
        return rows

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean row."""
        check_dtype(rows)
        self._check_leaving(rows, self.nodes)
        self._count_average(rows.shape[1] * rows.element_size())
        return rows.mean(dim=0)

    def _count_average(self, size: int) -> None:
        self.traffic.parameters += average_bytes(self.graph.n, size)
        if self.links is not None:
            self.traffic.seconds += self.links.average(self.graph, size)

    def _check_leaving(self, rows: torch.Tensor, senders: range | IntArray) -> None:
        if self.checks:
            check_leaving(rows, senders, self.step)


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
