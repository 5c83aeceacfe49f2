"""A gossip step between processes, from the moment when the rows have set out.

Legend: m owned rows of length d; r rows that arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mixwise.network.buffers import BufferPool
from mixwise.network.routes import MixingRoutes, Terms
from mixwise.network.transport import Sum, Transfer

_BLOCK = 1 << 17  # numbers of one block of columns that is summed up before the next: it stays in the cache


class PendingMix:
    """Rows under way; those that were sent must stay as they are until `wait` returns."""

    def __init__(
        self,
        buffers: BufferPool,
        rows: torch.Tensor,
        arriving: torch.Tensor,
        routes: MixingRoutes,
        transfer: Transfer,
        lent: list[torch.Tensor],
    ) -> None:
        self._buffers, self._rows, self._arriving = buffers, rows, arriving
        self._routes, self._transfer, self._lent = routes, transfer, lent

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wᵀ X, in a new tensor or in `out`, which may be the rows that were sent; to be called once."""
        self._transfer.wait()
        mixed = self._summed(out)
        for tensor in self._lent:
            self._buffers.give_back(tensor)
        return mixed

    def move(self, rows: torch.Tensor) -> None:
        """rows + (Wᵀ X − X), in their place; X is overwritten. Instead of `wait`."""
        self._transfer.wait()  # before anything changes: it may fail
        rows.sub_(self._rows)
        rows.add_(self.wait(self._rows))

    def _summed(self, out: torch.Tensor | None) -> torch.Tensor:
        """Σ_i w_ij x_i for each owned node j, senders ascending, so that it does not matter who sits where."""
        rows, arriving, (m, d) = self._rows, self._arriving, self._rows.shape
        if m == 1 and out is rows and arriving.dtype == rows.dtype:  # a copy of what arrived could not be overwritten
            for columns in _blocks(d, _BLOCK):
                _sum_in_place([rows[0, columns], *arriving[:, columns].unbind()], self._routes.terms[0])
            return rows
        # Several rows that are written where they are read must all be summed up before the first is written.
        apart = m if out is not None and m > 1 else 1
        out = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
        width = min(d, max(1, _BLOCK // apart))
        memory = self._buffers.take(apart, width, rows.dtype, rows.device)
        for columns in _blocks(d, width):
            sources = [*rows[:, columns].unbind(), *arriving[:, columns].to(rows.dtype).unbind()]
            sums = memory[:, : columns.stop - columns.start]
            if apart > 1:
                for target, terms in zip(sums.unbind(), self._routes.terms, strict=True):
                    _sum_up(sources, terms, target, target)
                out[:, columns] = sums
            else:
                for target, terms in zip(out[:, columns].unbind(), self._routes.terms, strict=True):
                    _sum_up(sources, terms, sums[0], target)
        self._buffers.give_back(memory)
        return out


class PendingAverage:
    """The mean of all rows, under way as one all-reduce."""

    def __init__(self, buffers: BufferPool, rows: torch.Tensor, total: Sum) -> None:
        self._buffers, self._rows, self._sum = buffers, rows, total

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean, in a new tensor or in `out`; to be called once."""
        self._sum.wait()
        if out is None:
            return self._sum.tensor  # it leaves the pool
        out.copy_(self._sum.tensor)
        self._buffers.give_back(self._sum.tensor)
        return out

    def move(self, rows: torch.Tensor) -> None:
        """rows + (mean − X), in their place. Instead of `wait`."""
        self._sum.wait()
        rows.sub_(self._rows).add_(self._sum.tensor)
        self._buffers.give_back(self._sum.tensor)


def _blocks(d: int, width: int) -> Iterator[slice]:
    """The columns, block by block."""
    return (slice(start, min(start + width, d)) for start in range(0, d, width))


def _sum_up(sources: list[torch.Tensor], terms: Terms, memory: torch.Tensor, out: torch.Tensor) -> None:
    """Σ w x into `out`, which may be one of the sources: it is written last, and `memory` before."""
    if not terms:
        out.zero_()
        return
    *others, (last, last_weight) = terms
    if not others:
        torch.mul(sources[last], last_weight, out=out)
        return
    (first, weight), *others = others
    torch.mul(sources[first], weight, out=memory)
    for position, weight in others:
        memory.add_(sources[position], alpha=weight)
    torch.add(memory, sources[last], alpha=last_weight, out=out)


def _sum_in_place(sources: list[torch.Tensor], terms: Terms) -> None:
    """The same sum, where the first source is; all of them may be overwritten, so that no other memory is touched."""
    out = sources[0]
    if not terms:
        out.zero_()
        return
    (first, weight), *others = terms
    total = sources[first].mul_(weight)
    for position, weight in others:
        # Once the own row had its turn, the sum goes on there.
        total = torch.add(total, sources[position], alpha=weight, out=out if position == 0 else total)
    if total is not out:
        out.copy_(total)
