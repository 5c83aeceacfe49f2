"""Gossip steps between processes, from the moment when the rows are sent.

An average of all rows, W = J, needs no center and two rounds of messages:

    1. every process sends to each other one the columns that are its,  x_r[P_p] → p
    2. each takes the mean of its columns and sends it to all,          Σ_r w x_r[P_p] → all

As many bytes as a ring all-reduce, 2 (n − 1)/n rows per process, but two waits for messages instead of 2 (n − 1).

Legend: m owned rows of length d; r rows that arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from mixwise.network.routes import MixingRoutes, block
from mixwise.network.sums import block_width, column_blocks, sum_in_place, sum_terms
from mixwise.network.traffic import Packing
from mixwise.network.transfer import Message, Round
from mixwise.network.values import check_arrived
from mixwise.network.wire import Wire

if TYPE_CHECKING:
    from mixwise.network.distributed import DistributedNetwork


class BufferPool:
    """Lends tensors and takes them back: touching fresh memory costs as much as sending the rows written to it."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}

    def take(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a (rows, columns) tensor with arbitrary content: one of this shape, the smallest with room, or new."""
        free = self._free.setdefault((dtype, device), [])
        for position, tensor in enumerate(free):
            if tensor.shape == (rows, columns):
                return free.pop(position)
        size = rows * columns
        free.sort(key=_room)
        for position, tensor in enumerate(free):
            if 0 < size <= _room(tensor):
                return _whole(free.pop(position))[:size].view(rows, columns)
        if free and size > 0:  # too small once, so it is replaced, not kept beside
            free.pop()
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def give_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take back tensors whose content is no longer needed."""
        for tensor in tensors:
            if tensor.numel() > 0:
                self._free[tensor.dtype, tensor.device].append(tensor)


def _room(tensor: torch.Tensor) -> int:
    """The capacity of the memory that the tensor is a part of."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of that memory, as a vector."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


class PendingMix:
    """Rows under way; the rows that were sent must not change until `wait` or `move` returns.

    Args:
        network: sends the messages, and lends memory.
        rows: X, those of the owned nodes.
        routes: of the gossip step.
        form: of the rows on the wire, if they do not travel as they are. With a `Wire`, the sums are those of rounded
            rows, the owned ones included.
        ahead: whether the caller computes something else before it waits.
    """

    def __init__(
        self,
        network: DistributedNetwork,
        rows: torch.Tensor,
        routes: MixingRoutes,
        form: Packing | Wire | None,
        *,
        ahead: bool,
    ) -> None:
        self._buffers, self._routes, self._form, self._exact = network.buffers, routes, form, rows
        self._checks = network.checks  # what arrives
        self._lent: list[torch.Tensor] = []  # from the pool
        source = rows.contiguous() if form is None else self._memory(len(rows), form.width, form.dtype)
        self._rows = source if isinstance(form, Wire) else rows  # that are added up
        if isinstance(form, Wire):
            form.pack(rows, source)
        elif form is not None:
            for position in {position for route in routes.sends for position in route.positions.tolist()}:
                form.pack(position, source[position])
        self._arriving = self._memory(routes.arriving, source.shape[1], source.dtype)
        self._transfer, lent = network.post_rows(source, self._arriving, routes, "mix", ahead=ahead)
        self._lent += lent

    def _arrived(self) -> None:
        """Wait, and unpack; rows that were only cast are cast back when they are summed, block by block in the cache.

        Another pass over rows of five million numbers took 75 instead of 63 ms.
        """
        self._transfer.wait()
        form, d = self._form, self._exact.shape[1]
        if isinstance(form, Wire) and not form.casts:
            self._rows = form.unpack(self._rows, self._memory(len(self._rows), d))
            self._arriving = form.unpack(self._arriving, self._memory(len(self._arriving), d))
        elif form is not None and not isinstance(form, Wire):
            packed, self._arriving = self._arriving, self._memory(len(self._arriving), d)
            for short, row in zip(packed, self._arriving, strict=True):
                form.unpack(short, row)
        if self._checks:
            check_arrived(self._arriving, self._exact, self._routes.senders, self._routes.nodes, self._transfer.step)

    @property
    def _alone(self) -> bool:
        """Whether rows that arrive may be overwritten, because only one owned row hears them."""
        return len(self._rows) == 1 and self._arriving.dtype == self._rows.dtype == self._exact.dtype

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return Wᵀ X, in a new tensor or in `out`, which may be the rows that were sent; call it once."""
        if isinstance(self._form, Wire):
            out = self._exact.clone() if out is None else out.copy_(self._exact)
            self.move(out)
            return out
        self._arrived()
        mixed = self._summed_in_place() if self._alone and out is self._rows else self._summed(out)
        self._buffers.give_back(self._lent)
        return mixed

    def move(self, rows: torch.Tensor) -> None:
        """Instead of `wait`: add (W − I)ᵀ X to these rows, in place; X is overwritten."""
        self._arrived()
        memory = None if self._alone else self._memory(2, block_width(rows.shape[1], 1))
        for columns in column_blocks(rows.shape[1], 1):
            sources = self._sources(columns)
            for target, terms in zip(_columns(rows, columns).unbind(), self._routes.moves, strict=True):
                if terms and memory is None:
                    target.add_(sum_in_place(sources, terms))
                elif terms and memory is not None:
                    total, product = memory[:, : target.numel()]
                    sum_terms(sources, terms, total, product)
                    target.add_(total)
        self._buffers.give_back(self._lent)

    def _summed_in_place(self) -> torch.Tensor:
        """Σ_i w_i x_i in place of the one owned row, in no memory but that of the rows."""
        for columns in column_blocks(self._rows.shape[1], 1):
            sum_in_place(self._sources(columns), self._routes.terms[0])
        return self._rows

    def _summed(self, out: torch.Tensor | None) -> torch.Tensor:
        """Σ_i w_ij x_i for each owned node j, senders ascending: the same bits for any number of processes."""
        rows, m = self._rows, len(self._rows)
        out = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
        memory = self._memory(m + 1, block_width(rows.shape[1], m))
        for columns in column_blocks(rows.shape[1], m):
            # The rows may be written where they are read, so all are added up before the first is written.
            sources, c = self._sources(columns), columns.stop - columns.start
            *sums, product = memory[:, :c].unbind()
            for total, terms in zip(sums, self._routes.terms, strict=True):
                sum_terms(sources, terms, total, product)
            out[:, columns] = memory[:m, :c]
        return out

    def _sources(self, columns: slice) -> list[torch.Tensor]:
        """The rows by position: the owned ones, and those that have arrived."""
        rows, arrived, dtype = _columns(self._rows, columns), _columns(self._arriving, columns), self._exact.dtype
        return [*rows.to(dtype).unbind(), *arrived.to(dtype).unbind()]

    def _memory(self, rows: int, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return memory for rows, or for one block of their columns; it is given back with the rest."""
        self._lent.append(self._buffers.take(rows, width, dtype or self._exact.dtype, self._exact.device))
        return self._lent[-1]


def _columns(rows: torch.Tensor, columns: slice) -> torch.Tensor:
    """Some columns; the tensor itself, without slicing, if that is all of them."""
    return rows if columns.stop - columns.start == rows.shape[1] else rows[:, columns]


class PendingAverage:
    """Σ_r x_r / n under way, the same bits on all processes; x (1, d) must not change until `wait` or `move` returns.

    Args:
        network: sends the messages, and lends memory.
        row: x, of this process.
        operation: for error messages.
        ahead: whether the caller computes something else before it waits.
    """

    def __init__(self, network: DistributedNetwork, row: torch.Tensor, operation: str, *, ahead: bool = False) -> None:
        transport, buffers, weight = network.transport, network.buffers, 1 / network.graph.n
        (_, d), world, own = row.shape, transport.world, transport.rank
        peers = [(own + k) % world for k in range(1, world)]
        columns = [slice(part.start, part.stop) for part in (block(d, rank, world) for rank in range(world))]
        mine = columns[own]
        self._buffers, self._row = buffers, row
        self._mean = buffers.take(1, d, row.dtype, row.device)
        self._pieces = buffers.take(world, mine.stop - mine.start, row.dtype, row.device)
        x, mean, pieces = row[0], self._mean[0], self._pieces

        def sum_up() -> None:  # senders ascending, as in any mixing
            pieces[own] = x[mine]
            pieces.mul_(weight)
            mean[mine] = pieces[0]
            for piece in pieces[1:]:
                mean[mine].add_(piece)

        rounds = [
            Round([Message(p, x[columns[p]]) for p in peers], [Message(p, pieces[p]) for p in peers]),
            Round([Message(p, mean[mine]) for p in peers], [Message(p, mean[columns[p]]) for p in peers], sum_up),
        ]
        self._transfer = transport.post(rounds, operation, network.step, ahead=ahead)

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean, in a new tensor or in `out`, which may be the row itself; call it once."""
        self._transfer.wait()
        if out is None:
            self._buffers.give_back([self._pieces])
            return self._mean  # it leaves the pool
        out.copy_(self._mean)
        self._buffers.give_back([self._pieces, self._mean])
        return out

    def move(self, rows: torch.Tensor) -> None:
        """Instead of `wait`: add mean − X to these rows, in place."""
        self._transfer.wait()
        rows.sub_(self._row).add_(self._mean)
        self._buffers.give_back([self._pieces, self._mean])
