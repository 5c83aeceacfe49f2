"""The nodes divided over the processes of torch.distributed: rows travel as messages between processes.

Legend: n nodes in all; m rows owned by this process; r rows that arrive from others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing import MixingMatrix
from mixwise.network.agreement import check_alike, describe
from mixwise.network.links import Links
from mixwise.network.measuring import Measuring
from mixwise.network.pending import BufferPool, PendingAverage, PendingMix
from mixwise.network.routes import MixingRoutes, Router, Routes, block
from mixwise.network.traffic import LONG_ROW, ROWS, Arrivals, Cargo, Packing, Traffic, average_bytes, message_bytes
from mixwise.network.transfer import Message, Round, Transfer
from mixwise.network.transport import Transport
from mixwise.network.values import check_dtype, check_leaving
from mixwise.network.wire import Wire, as_wire_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KEPT = 64  # matrices whose routes are remembered
_KEPT_GRAPHS = 1024  # graphs of exchanges whose routes are remembered: every level of a tree is one
_made = itertools.count()  # networks made by this process


class DistributedNetwork:
    """A network whose n nodes are divided over the processes of a group, in contiguous blocks (see `block`).

    Every process must construct it, and then call the same methods in the same order. A message that does not arrive
    within `timeout`, or whose sender is gone, raises a `NetworkError` that names rank, operation and step.

    Args:
        graph: the communication graph, the same on every process.
        group: the processes; by default all of the default process group.
        timeout: the longest time that one operation may take, in seconds.
        wire_dtype: torch.bfloat16 or torch.int8: rows are rounded for the message (see `mixwise.network.wire`).
        has_changed: whether another group is to take the place of this one (see `Transport`).

    Attributes:
        traffic: what all nodes have sent, as in a simulation (see `Traffic`): a row counts once per neighbor that hears
            it, also if both are in one process. The same number on every process.
        sent: bytes that this process has actually sent. With one node per process, the sum over all
            processes grows as `traffic` does.
    """

    def __init__(
        self,
        graph: GraphLike,
        *,
        group: ProcessGroup | None = None,
        timeout: float = 60.0,
        wire_dtype: torch.dtype | None = None,
        has_changed: Callable[[], bool] | None = None,
    ) -> None:
        self.graph, self.wire_dtype = as_graph(graph), as_wire_dtype(wire_dtype)
        self.transport = Transport(group, timeout, has_changed)
        self.rank, self.world = self.transport.rank, self.transport.world
        self.nodes = block(self.graph.n, self.rank, self.world)
        self.traffic = Traffic()
        self.links: Links | None = None  # time between processes is measured, not simulated
        self.step: int | None = None
        self.checks = True  # whether rows must be fit to be mixed
        self._router = Router(self.graph.n, self.rank, self.world)
        self.buffers = BufferPool()
        self._mixing: dict[int, tuple[MixingMatrix, MixingRoutes]] = {}  # by id, the last used at the end
        self._exchange_routes = lru_cache(_KEPT_GRAPHS)(self._router.exchange)
        self._blocks = [block(self.graph.n, rank, self.world) for rank in range(self.world)]
        self._agree()

    @property
    def sent(self) -> int:
        """Bytes that this process has really sent; `traffic` counts what the operations cost."""
        return self.transport.sent

    def begin(self, step: int) -> None:
        """Begin a step, which error messages name."""
        self.step = step

    def uncounted(self) -> DistributedNetwork:
        """Return this network with a counter of its own."""
        view = copy(self)
        view.traffic = Traffic()
        return view

    def measuring(self) -> Measuring:
        """Return the view for measurements."""
        view = self.uncounted()
        view.wire_dtype, view.checks = None, False
        return Measuring(view)

    def _agree(self) -> None:
        """Raise an error, on all processes at once, if they have different settings."""
        made = self.transport.gather(torch.tensor([[next(_made)]], device=self.transport.device), "making the network")
        # Networks made one after the other on the same store leave their notes in different places.
        self.transport.notes = f"gave-up/{'-'.join(map(str, made[:, 0].tolist()))}"
        settings = describe("the graph", self.graph) | describe("wire_dtype", self.wire_dtype)
        check_alike(settings, None, self.transport)

    # --- gossip ---
    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return the owned rows of Wᵀ X; each row travels once to every process that needs it."""
        return self._start(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> PendingMix | PendingAverage:
        """Send the rows, which then travel while something else is computed."""
        return self._start(rows, W, None, ahead=True)

    def _start(
        self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None, *, ahead: bool = False
    ) -> PendingMix | PendingAverage:
        self._check_nodes(W.n)
        _check_rows(rows, len(self.nodes))
        check_dtype(rows)
        routes, averages = self._mixing_routes(W), W.is_average and packing is None
        wire = Wire.of(rows, self.wire_dtype) if packing is None and not averages else None
        size = message_bytes(rows, packing or wire)
        self.traffic.parameters += average_bytes(self.graph.n, size) if averages else self._messages(W, routes) * size
        self._check_leaving(rows, wire, self.nodes)
        if averages and routes.averages and size >= LONG_ROW:  # of short rows one round is faster
            return PendingAverage(self, rows.contiguous(), "mix", ahead=ahead)
        return PendingMix(self, rows, routes, packing or wire, ahead=ahead)

    def _messages(self, W: MixingMatrix, routes: MixingRoutes) -> int:
        """Return how many rows all nodes send; collective in every mixing where no process knows all weights."""
        if W.whole or not self.checks:  # or nothing is counted
            return routes.messages
        own = torch.tensor([[routes.messages]], device=self.transport.device)
        return int(self.transport.gather(own, "counting messages", self.step).sum())

    def _mixing_routes(self, W: MixingMatrix) -> MixingRoutes:
        found = self._mixing.pop(id(W), None)
        if found is None:
            found = W, self._router.mixing(W)  # W is kept, so that its id stays its own
        self._mixing[id(W)] = found
        if len(self._mixing) > _KEPT:
            del self._mixing[next(iter(self._mixing))]
        return found[1]

    # --- exchange, gather, average ---
    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = ROWS) -> Arrivals:
        """Send one row along every arc of `graph`."""
        self._check_nodes(graph.n)
        routes = self._exchange_routes(graph)
        _check_rows(messages, len(routes.sources))
        wire = Wire.of(messages, self.wire_dtype) if cargo.counted == "parameters" else None
        size, device = message_bytes(messages, wire), messages.device
        self.traffic.add(cargo, routes.messages * size)
        if cargo.counted == "parameters":
            self._check_leaving(messages, wire, routes.sources)
        source = messages.contiguous() if wire is None else wire.pack(messages)
        arriving = self.buffers.take(routes.arriving, source.shape[1], source.dtype, device)
        transfer, packed = self.post_rows(source, arriving, routes, "exchange")
        sent, places = (positions.to(device) for positions in routes.inside)
        arrived = source.new_empty(routes.arriving + len(places), source.shape[1])
        arrived.index_copy_(0, places, source[sent])
        transfer.wait()
        arrived.index_copy_(0, routes.outside.to(device), arriving)
        self.buffers.give_back([arriving, *packed])
        if wire is not None:
            arrived = wire.unpack(arrived, messages.new_empty(len(arrived), messages.shape[1]))
        return Arrivals(arrived)

    def post_rows(
        self, source: torch.Tensor, arriving: torch.Tensor, routes: Routes, operation: str, *, ahead: bool = False
    ) -> tuple[Transfer, list[torch.Tensor]]:
        """Send rows of `source` to the peers that need them, and receive theirs in `arriving`, one after the other.

        Returns the transfer, and what was taken from the buffers for it.
        """
        sends, receives, lent, at = [], [], [], 0
        row_bytes = source.shape[1] * source.element_size()
        for route in routes.sends:
            if route.is_packed(row_bytes):
                lent.append(self.buffers.take(len(route.positions), source.shape[1], source.dtype, source.device))
                torch.index_select(source, 0, route.positions.to(source.device), out=lent[-1])
                sends.append(Message(route.peer, lent[-1]))
            else:
                sends += [Message(route.peer, _part(source, first, count)) for first, count in route.runs]
        for route in routes.receives:
            packed = route.is_packed(row_bytes)
            for count in [len(route.positions)] if packed else [count for _, count in route.runs]:
                receives.append(Message(route.peer, _part(arriving, at, count)))
                at += count
        return self.transport.post([Round(sends, receives)], operation, self.step, ahead=ahead), lent

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of all nodes, in their order; counted as in a simulation: each reaches n − 1 nodes."""
        _check_rows(rows, len(self.nodes))
        n = self.graph.n
        self.traffic.sketches += (n - 1) * n * rows.shape[1] * rows.element_size()
        return self.transport.gather(rows, "gather", self.step, self._blocks)

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean row; counted as in a simulation."""
        check_dtype(rows)
        size, n = rows.shape[1] * rows.element_size(), self.graph.n
        self._check_leaving(rows, None, self.nodes)
        self.traffic.parameters += average_bytes(n, size)
        total = rows if len(rows) == 1 else rows.sum(dim=0, keepdim=True)
        if size < LONG_ROW:  # one round is faster
            return self.transport.gather(total, "average", self.step).sum(dim=0).div_(n)
        return PendingAverage(self, total.contiguous(), "average").wait()[0]

    def _check_leaving(self, rows: torch.Tensor, wire: Wire | None, senders: range | IntArray) -> None:
        """Reject rows that are not finite, in the precision in which they travel."""
        if self.checks:
            sent = rows if wire is None or not wire.casts else rows.to(wire.dtype)
            check_leaving(sent, senders, self.step)

    def _check_nodes(self, n: int) -> None:
        if n != self.graph.n:
            raise MixingError(f"a matrix or a graph for {n} nodes; the network has {self.graph.n}")


def _check_rows(rows: torch.Tensor, count: int) -> None:
    if rows.ndim != 2 or len(rows) != count:
        raise MixingError(f"rows of shape {tuple(rows.shape)}; expected {count} rows, those of this process")


def _part(rows: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return `count` adjacent rows; the tensor itself, without slicing, if that is all of them."""
    return rows if count == rows.shape[0] else rows[first : first + count]
