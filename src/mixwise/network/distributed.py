"""The nodes divided over the processes of torch.distributed: rows travel as messages between processes.

Legend: n nodes in all; m rows owned by this process; r rows that arrive from others.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch

from mixwise.errors import MixingError, NetworkError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.base import Cargo, Traffic
from mixwise.network.blocks import block
from mixwise.network.buffers import BufferPool
from mixwise.network.routes import PACKED_BELOW, ExchangeRoutes, MixingRoutes, Router
from mixwise.network.transport import Message, Transfer, Transport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KEPT = 64  # matrices whose routes are remembered
_SHORT = 64  # numbers; rows up to here travel as they are: casting saves nothing, and they may be weights of push-sum
_BLOCK = 1 << 16  # numbers of one block of columns that is summed up before it is written: it stays in the cache
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
        traffic: what all nodes have sent, as in a simulation: a row counts once per neighbor that hears it, also if
            both are in one process. The same number on every process.
        sent: bytes that this process has really handed to the transport. With one node per process these are the bytes
            that its node has sent, except for rows that algorithms compress: they are counted as compressed in
            `traffic`, but travel, and count here, in full.
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
        self.step: int | None = None
        self._router = Router(graph.n, self.rank, self.world)
        self._buffers = BufferPool()
        self._mixing: OrderedDict[int, tuple[MixingMatrix, MixingRoutes]] = OrderedDict()
        self._exchange: tuple[Graph, ExchangeRoutes] | None = None
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
        table = self._gathered(mine, [range(rank, rank + 1) for rank in range(self.world)], "making the network")
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
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, message_bytes: int | None = None
    ) -> torch.Tensor:
        """The owned rows of Wᵀ X; each row travels once to every process that has a use for it."""
        return self._start(rows, W, message_bytes).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> PendingMix:
        """Send the rows; while they travel, something else can be computed."""
        return self._start(rows, W, None)

    def _start(self, rows: torch.Tensor, W: MixingMatrix, message_bytes: int | None) -> PendingMix:
        if W.n != self.graph.n or rows.ndim != 2 or len(rows) != len(self.nodes):
            raise MixingError(
                f"rows of shape {tuple(rows.shape)} cannot be mixed by a matrix for {W.n} nodes: this process has "
                f"{len(self.nodes)} of {self.graph.n} nodes, one row each"
            )
        routes, (m, d) = self._mixing_routes(W), rows.shape
        # Compressed rows must arrive as the sender remembers them.
        wire = rows.dtype if message_bytes is not None or d <= _SHORT else self.wire_dtype or rows.dtype
        size = d * wire.itemsize
        self._count("parameters", W, routes, size if message_bytes is None else message_bytes)
        source, lent = rows if rows.is_contiguous() else rows.contiguous(), []
        if wire != rows.dtype:
            source = self._buffers.take(m, d, wire, rows.device)
            source.copy_(rows)
            lent.append(source)
        arriving = self._buffers.take(routes.arriving, d, wire, rows.device)
        lent.append(arriving)
        sends, receives, at = [], [], 0
        for route in routes.sends:
            runs = route.runs(size)
            if runs is None:
                packed = self._buffers.take(len(route.positions), d, wire, rows.device)
                lent.append(packed)
                torch.index_select(source, 0, torch.from_numpy(route.positions).to(rows.device), out=packed)
                sends.append(Message(route.peer, packed))
            else:
                first = (int(route.positions[run.start]) for run in runs)
                sends += [
                    Message(route.peer, source[a : a + run.stop - run.start])
                    for a, run in zip(first, runs, strict=True)
                ]
        for route in routes.receives:
            count = len(route.positions)
            for run in route.runs(size) or [slice(0, count)]:
                receives.append(Message(route.peer, arriving[at + run.start : at + run.stop]))
            at += count
        transfer = self.transport.post(sends, receives, "mix", self.step)
        return PendingMix(self, rows, arriving, routes, transfer, lent)

    def _mixing_routes(self, W: MixingMatrix) -> MixingRoutes:
        """Those of a matrix that was here before are still known."""
        if id(W) in self._mixing:
            self._mixing.move_to_end(id(W))
        else:
            self._mixing[id(W)] = W, self._router.mixing(W)  # W is kept, so that its id belongs to nobody else
            if len(self._mixing) > _KEPT:
                self._mixing.popitem(last=False)
        return self._mixing[id(W)][1]

    def _count(self, cargo: Cargo, W: MixingMatrix, routes: MixingRoutes, size: int) -> None:
        self.traffic.add(cargo, W.messages * size)

    # --- other ways ---
    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """One row per arc of `graph`, from its sender to its receiver."""
        if self._exchange is None or self._exchange[0] != graph:
            self._exchange = graph, self._router.exchange(graph)
        routes = self._exchange[1]
        if messages.ndim != 2 or len(messages) != routes.outgoing or graph.n != self.graph.n:
            raise MixingError(
                f"messages of shape {tuple(messages.shape)} for {routes.outgoing} arcs out of the owned nodes; "
                f"one row each"
            )
        d, device = messages.shape[1], messages.device
        wire = self.wire_dtype if self.wire_dtype and cargo == "parameters" and d > _SHORT else messages.dtype
        self.traffic.add(cargo, routes.messages * d * wire.itemsize)
        source = messages.contiguous().to(wire)
        arrived = torch.empty(routes.incoming, d, dtype=messages.dtype, device=device)
        outside, inside = (torch.from_numpy(positions).to(device) for positions in routes.inside)
        arrived[inside] = messages[outside]
        packed = d * wire.itemsize < PACKED_BELOW or wire != messages.dtype
        sends, receives, unpack = [], [], []
        for route in routes.sends:
            if packed:
                sends.append(Message(route.peer, source[torch.from_numpy(route.positions).to(device)]))
            else:
                sends += [Message(route.peer, source[p]) for p in route.positions.tolist()]
        for route in routes.receives:
            if packed:
                buffer = torch.empty(len(route.positions), d, dtype=wire, device=device)
                receives.append(Message(route.peer, buffer))
                unpack.append((torch.from_numpy(route.positions).to(device), buffer))
            else:
                receives += [Message(route.peer, arrived[p]) for p in route.positions.tolist()]
        self.transport.post(sends, receives, "exchange", self.step).wait()
        for positions, buffer in unpack:
            arrived[positions] = buffer.to(messages.dtype)
        return arrived

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all nodes, in the order of the nodes; counted as in a simulation: each reaches n − 1 nodes."""
        blocks = [block(self.graph.n, rank, self.world) for rank in range(self.world)]
        self.traffic.sketches += (self.graph.n - 1) * self.graph.n * rows[0].numel() * rows.element_size()
        return self._gathered(rows, blocks, "gather")

    def _gathered(self, rows: torch.Tensor, blocks: list[range], operation: str) -> torch.Tensor:
        """Everybody's block to everybody, each straight to its place."""
        everything = rows.new_empty(blocks[-1].stop, *rows.shape[1:])
        rows = rows.contiguous()
        peers = [rank for rank in range(self.world) if rank != self.rank]
        receives = [Message(peer, everything[blocks[peer].start : blocks[peer].stop]) for peer in peers]
        transfer = self.transport.post([Message(peer, rows) for peer in peers], receives, operation, self.step)
        everything[blocks[self.rank].start : blocks[self.rank].stop] = rows
        transfer.wait()
        return everything

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean row; counted as in a simulation. Each process sums up one block of columns, in the order of the
        ranks, and sends it to all others: as many bytes as a ring all-reduce, in two rounds."""
        n, d = self.graph.n, rows.shape[1]
        self.traffic.parameters += 2 * (n - 1) * d * rows.element_size()
        total, peers = rows.sum(dim=0), [rank for rank in range(self.world) if rank != self.rank]
        bounds = [d * rank // self.world for rank in range(self.world + 1)]
        parts = [total[a:b] for a, b in itertools.pairwise(bounds)]
        own = parts[self.rank]
        arriving = {peer: torch.empty_like(own) for peer in peers}
        self._send_all({peer: parts[peer] for peer in peers}, arriving if own.numel() else {}, "average")
        summed = torch.zeros_like(own)
        for rank in range(self.world):
            summed += own if rank == self.rank else arriving[rank]
        own.copy_(summed.div_(n))
        self._send_all(dict.fromkeys(peers, own), {peer: parts[peer] for peer in peers}, "average")
        return total

    def _send_all(self, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor], operation: str) -> None:
        outgoing = [Message(peer, tensor) for peer, tensor in sends.items() if tensor.numel()]
        incoming = [Message(peer, tensor) for peer, tensor in receives.items() if tensor.numel()]
        self.transport.post(outgoing, incoming, operation, self.step).wait()

    def uncounted(self) -> AbstractContextManager[None]:
        """What is sent inside is left out of `traffic`; `sent` counts it nevertheless."""
        return self.traffic.unchanged()


class PendingMix:
    """Rows under way; those that were sent must stay as they are until `wait` returns."""

    def __init__(
        self,
        network: DistributedNetwork,
        rows: torch.Tensor,
        arriving: torch.Tensor,
        routes: MixingRoutes,
        transfer: Transfer,
        lent: list[torch.Tensor],
    ) -> None:
        self._network, self._rows, self._arriving = network, rows, arriving
        self._routes, self._transfer, self._lent = routes, transfer, lent

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wᵀ X, in a new tensor or in `out`, which may be the rows that were sent."""
        self._transfer.wait()
        mixed = _sum_up(self._rows, self._arriving, self._routes, out)
        for tensor in self._lent:
            self._network._buffers.give_back(tensor)
        self._lent = []
        return mixed


def _sum_up(rows: torch.Tensor, arriving: torch.Tensor, routes: MixingRoutes, out: torch.Tensor | None) -> torch.Tensor:
    """Σ_i w_ij x_i for each owned node j, senders ascending, so that it does not matter who sits where."""
    if out is None:
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        _add_terms([*rows.unbind(), *arriving.unbind()], routes, out)
        return out
    width = max(1, _BLOCK // len(rows))
    block_of_columns = rows.new_empty(len(rows), min(width, rows.shape[1]))
    for start in range(0, rows.shape[1], width):  # block by block: rows and out may be the same tensor
        columns = slice(start, min(start + width, rows.shape[1]))
        summed = block_of_columns[:, : columns.stop - columns.start]
        _add_terms([*rows[:, columns].unbind(), *arriving[:, columns].unbind()], routes, summed)
        out[:, columns] = summed
    return out


def _add_terms(sources: list[torch.Tensor], routes: MixingRoutes, out: torch.Tensor) -> None:
    for target, terms in zip(out.unbind(), routes.terms, strict=True):
        if not terms:
            target.zero_()
            continue
        (first, weight), *others = terms
        torch.mul(sources[first], weight, out=target)
        for position, weight in others:
            target.add_(sources[position], alpha=weight)


def _number(text: str) -> int:
    """A name as a number that travels."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
