"""The nodes divided over the processes of torch.distributed: rows travel as messages between processes.

Legend: n nodes in all; m rows owned by this process; r rows that arrive from others.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mixwise.errors import MixingError, NetworkError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.averaging import PendingAverage
from mixwise.network.blocks import block
from mixwise.network.buffers import BufferPool
from mixwise.network.links import Links
from mixwise.network.packing import LONG_ROW, Cast, Packing, average_bytes, message_bytes
from mixwise.network.pending import PendingMix
from mixwise.network.routes import ExchangeRoutes, MixingRoutes, Route, Router
from mixwise.network.traffic import Cargo, Traffic
from mixwise.network.transfer import Message, Round
from mixwise.network.transport import Transport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KEPT = 64  # matrices whose routes are remembered
_KEPT_GRAPHS = 1024  # and graphs of exchanges: every level of a tree is one
_SHORT = 64  # numbers; rows up to here travel as they are: casting saves nothing, and they may be weights of push-sum
_made = itertools.count()  # networks made by this process


class DistributedNetwork:
    """A network whose n nodes are divided over the processes of a group, in contiguous blocks (see `block`).

    Every process must make it, and then ask the same of it in the same order. What does not arrive within `timeout`, or
    will not because a process is gone, is a `NetworkError` that names rank, operation and step.

    Args:
        graph: who talks to whom; the same on every process.
        group: the processes; by default all of the default process group.
        timeout: seconds that one operation may take before it is given up.
        wire_dtype: torch.bfloat16 or torch.float16: rows of parameters are cast for the message, and only for it.
        device: where small messages are put together; by default the processor, or the current device under nccl.

    Attributes:
        traffic: what all nodes have sent, as in a simulation (see `Traffic`): a row counts once per neighbor that hears
            it, also if both are in one process. The same number on every process.
        sent: bytes that this process has really handed to the transport. With one node per process, the sum over all
            processes grows as `traffic` does.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        group: ProcessGroup | None = None,
        timeout: float = 60.0,
        wire_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if wire_dtype not in (None, torch.bfloat16, torch.float16):
            raise NetworkError(f"wire_dtype = {wire_dtype}; rows travel as they are, in bfloat16 or in float16")
        self.transport = Transport(group, timeout)
        self.rank, self.world = self.transport.rank, self.transport.world
        self.graph, self.wire_dtype = graph, wire_dtype
        self.nodes = block(graph.n, self.rank, self.world)
        self.device = self.transport.default_device if device is None else torch.device(device)
        self.traffic = Traffic()
        self.links: Links | None = None  # time between processes is measured, not simulated
        self.step: int | None = None
        self._router = Router(graph.n, self.rank, self.world)
        self._buffers = BufferPool()
        self._mixing: OrderedDict[int, tuple[MixingMatrix, MixingRoutes]] = OrderedDict()
        self._exchanges: OrderedDict[Graph, ExchangeRoutes] = OrderedDict()
        self._blocks = [block(graph.n, rank, self.world) for rank in range(self.world)]
        self._one_each = [range(rank, rank + 1) for rank in range(self.world)]
        self._peers = [rank for rank in range(self.world) if rank != self.rank]
        self._agree()

    @property
    def sent(self) -> int:
        """Bytes of all tensors that this process has handed over for sending."""
        return self.transport.sent

    def _agree(self) -> None:
        """Refuse to work with processes that have something else in mind; all of them find out at the same time."""
        key = (self.graph.n, self.graph.directed, self.graph.edge_array.tobytes())
        settings = {"graph": repr(key), "wire_dtype": str(self.wire_dtype)}
        digests = [_number(value) for value in settings.values()]
        mine = torch.tensor([[*digests, next(_made)]], device=self.device)
        table = self._gathered(mine, self._one_each, "making the network")
        for (name, value), column in zip(settings.items(), table.T.tolist(), strict=False):
            others = [self.transport.name(rank) for rank in range(self.world) if column[rank] != column[0]]
            if others:
                shown = self.graph if name == "graph" else value
                raise NetworkError(
                    f"{_ranks(others)} and rank {self.transport.name(0)} have not the same {name} (here: {shown}); "
                    f"give every process the same"
                )
        # Networks made one after the other on the same store leave their notes in different places.
        self.transport.notes = f"mixwise/{_number(repr(table[:, -1].tolist()))}"

    # --- gossip ---
    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """The owned rows of Wᵀ X; each row travels once to every process that has a use for it."""
        return self._start(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> PendingMix | PendingAverage:
        """Send the rows; while they travel, something else can be computed."""
        return self._start(rows, W, None, ahead=True)

    def _start(
        self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None, *, ahead: bool = False
    ) -> PendingMix | PendingAverage:
        if W.n != self.graph.n or rows.ndim != 2 or rows.shape[0] != len(self.nodes):
            raise MixingError(
                f"rows of shape {tuple(rows.shape)} cannot be mixed by a matrix for {W.n} nodes: this process has "
                f"{len(self.nodes)} of {self.graph.n} nodes, one row each"
            )
        routes, (m, d) = self._mixing_routes(W), rows.shape
        if packing is None and self.wire_dtype is not None and d > _SHORT and rows.dtype != self.wire_dtype:
            packing = Cast(rows, self.wire_dtype)
        size = message_bytes(rows, packing)
        averages = W.is_average and packing is None
        self.traffic.parameters += average_bytes(self.graph.n, size) if averages else routes.messages * size
        if averages and routes.averages and size >= LONG_ROW:  # of short rows one round is faster
            return self._averaging(rows.contiguous(), "mix", ahead=ahead)
        source, lent = rows.contiguous(), []
        if packing is not None:
            source = self._buffers.take(m, packing.width, packing.dtype, rows.device)
            lent.append(source)
            for position in routes.sent:
                packing.pack(position, source[position])
        arriving = self._buffers.take(routes.arriving, source.shape[1], source.dtype, rows.device)
        lent.append(arriving)
        sends, receives, at = [], [], 0
        for route in routes.sends:
            if self._packed(route, size):
                packed = self._buffers.take(len(route.positions), source.shape[1], source.dtype, rows.device)
                lent.append(packed)
                torch.index_select(source, 0, route.index.to(rows.device), out=packed)
                sends.append(Message(route.peer, packed))
            else:
                sends += [Message(route.peer, _part(source, first, count)) for first, count in route.runs]
        for route in routes.receives:
            parts = [len(route.positions)] if self._packed(route, size) else [count for _, count in route.runs]
            for count in parts:
                receives.append(Message(route.peer, _part(arriving, at, count)))
                at += count
        transfer = self.transport.post([Round(sends, receives)], "mix", self.step, ahead=ahead)
        return PendingMix(self._buffers, rows, arriving, routes, transfer, lent, packing)

    @staticmethod
    def _packed(route: Route, row_bytes: int) -> bool:
        """Whether rows that do not lie beside each other are copied into one message; both ends see the same route."""
        return len(route.runs) > 1 and row_bytes < LONG_ROW

    def _mixing_routes(self, W: MixingMatrix) -> MixingRoutes:
        """Those of a matrix that was here before are still known."""
        if id(W) in self._mixing:
            self._mixing.move_to_end(id(W))
        else:
            routes = self._router.mixing(W)
            if not W.whole:  # nobody knows all weights, so everybody tells how many rows its nodes send
                own = torch.tensor([[routes.messages]], device=self.device)
                routes = replace(routes, messages=int(self._gathered(own, self._one_each, "counting messages").sum()))
            self._mixing[id(W)] = W, routes  # W is kept, so that its id belongs to nobody else
            if len(self._mixing) > _KEPT:
                self._mixing.popitem(last=False)
        return self._mixing[id(W)][1]

    # --- other ways ---
    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """One row per arc of `graph`, from its sender to its receiver."""
        if graph.n != self.graph.n:
            raise MixingError(f"an exchange on a graph of {graph.n} nodes, but the network has {self.graph.n}")
        routes = self._exchange_routes(graph)
        if messages.ndim != 2 or len(messages) != routes.outgoing:
            raise MixingError(
                f"messages of shape {tuple(messages.shape)} for {routes.outgoing} arcs out of the owned nodes; "
                f"one row each"
            )
        (_, d), device = messages.shape, messages.device
        wire = self.wire_dtype if self.wire_dtype and cargo == "parameters" and d > _SHORT else messages.dtype
        self.traffic.add(cargo, routes.messages * d * wire.itemsize)
        source = messages.contiguous().to(wire)
        arrived = torch.empty(routes.incoming, d, dtype=messages.dtype, device=device)
        sends, receives, packed = [], [], []
        direct = d * wire.itemsize >= LONG_ROW and wire == messages.dtype  # long rows: no copies
        for route in routes.sends:
            if direct or len(route.positions) == 1:
                sends += [Message(route.peer, source[p]) for p in route.positions]
            else:
                sends.append(Message(route.peer, source[route.index.to(device)]))
        for route in routes.receives:
            if direct:
                receives += [Message(route.peer, arrived[p]) for p in route.positions]
            else:
                packed.append((route, torch.empty(len(route.positions), d, dtype=wire, device=device)))
        receives += [Message(route.peer, rows) for route, rows in packed]
        transfer = self.transport.post([Round(sends, receives)], "exchange", self.step)
        outside, inside = routes.inside
        if len(inside):
            arrived[inside.to(device)] = messages[outside.to(device)]
        transfer.wait()
        for route, rows in packed:
            arrived[route.index.to(device)] = rows.to(messages.dtype)
        return arrived

    def _exchange_routes(self, graph: Graph) -> ExchangeRoutes:
        """Those of a graph that was here before are still known."""
        if graph not in self._exchanges:
            self._exchanges[graph] = self._router.exchange(graph)
            if len(self._exchanges) > _KEPT_GRAPHS:
                self._exchanges.popitem(last=False)
        self._exchanges.move_to_end(graph)
        return self._exchanges[graph]

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all nodes, in the order of the nodes; counted as in a simulation: each reaches n − 1 nodes."""
        if rows.ndim != 2 or len(rows) != len(self.nodes):
            raise MixingError(
                f"rows of shape {tuple(rows.shape)} to gather: one row for each of {len(self.nodes)} nodes"
            )
        n = self.graph.n
        self.traffic.sketches += (n - 1) * n * rows.shape[1] * rows.element_size()
        return self._gathered(rows, self._blocks, "gather")

    def _gathered(self, rows: torch.Tensor, blocks: list[range], operation: str) -> torch.Tensor:
        """Everybody's block to everybody, each straight to its place."""
        everything, rows, own = rows.new_empty(blocks[-1].stop, rows.shape[1]), rows.contiguous(), blocks[self.rank]
        receives = [Message(peer, everything[blocks[peer].start : blocks[peer].stop]) for peer in self._peers]
        sends = [Message(peer, rows) for peer in self._peers]
        transfer = self.transport.post([Round(sends, receives)], operation, self.step)
        everything[own.start : own.stop] = rows
        transfer.wait()
        return everything

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean row; counted as in a simulation."""
        (_, d), n = rows.shape, self.graph.n
        self.traffic.parameters += average_bytes(n, d * rows.element_size())
        total = rows if len(rows) == 1 else rows.sum(dim=0, keepdim=True)
        if d * rows.element_size() < LONG_ROW:  # one round is faster
            return self._gathered(total, self._one_each, "average").sum(dim=0).div_(n)
        return self._averaging(total.contiguous(), "average").wait()[0]

    def _averaging(self, row: torch.Tensor, operation: str, *, ahead: bool = False) -> PendingAverage:
        return PendingAverage(self.transport, self._buffers, row, 1 / self.graph.n, operation, self.step, ahead=ahead)

    def uncounted(self) -> AbstractContextManager[None]:
        """What is sent inside is left out of `traffic`; `sent` counts it nevertheless."""
        return self.traffic.unchanged()


def _part(rows: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Rows that follow each other; all of them are no part."""
    return rows if count == rows.shape[0] else rows[first : first + count]


def _number(text: str) -> int:
    """A name as a number that travels."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
