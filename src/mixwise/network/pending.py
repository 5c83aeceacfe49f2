"""A gossip step between processes, from the moment when the rows have set out.

Legend: m owned rows of length d; r rows that arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mixwise.network.buffers import BufferPool
from mixwise.network.packing import Cast, Packing
from mixwise.network.routes import MixingRoutes, Terms
from mixwise.network.transfer import Transfer

_BLOCK = 1 << 17  # numbers of one block of columns that is summed up before the next: it stays in the cache


class PendingMix:
    """Rows under way; those that were sent must stay as they are until `wait` or `move` returns."""

    def __init__(
        self,
        buffers: BufferPool,
        rows: torch.Tensor,
        arriving: torch.Tensor,
        routes: MixingRoutes,
        transfer: Transfer,
        lent: list[torch.Tensor],
        packing: Packing | None,
    ) -> None:
        self._buffers, self._rows, self._arriving = buffers, rows, arriving
        self._routes, self._transfer, self._lent, self._packing = routes, transfer, lent, packing

    def _arrived(self) -> None:
        """Wait, and unpack. What was only cast is cast back block by block, when it is summed up, in the cache: another
        pass over rows of five million numbers took 75 instead of 63 ms."""
        self._transfer.wait()
        if self._packing is None or isinstance(self._packing, Cast):
            return
        (_, d), packed = self._rows.shape, self._arriving
        self._arriving = self._buffers.take(len(packed), d, self._rows.dtype, self._rows.device)
        self._lent.append(self._arriving)
        for short, row in zip(packed, self._arriving, strict=True):
            self._packing.unpack(short, row)

    @property
    def _alone(self) -> bool:
        """Whether what one row hears may be overwritten, since no other row here hears it."""
        return self._rows.shape[0] == 1 and self._arriving.dtype == self._rows.dtype

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wᵀ X, in a new tensor or in `out`, which may be the rows that were sent; to be called once."""
        self._arrived()
        mixed = self._summed_in_place() if self._alone and out is self._rows else self._summed(out)
        self._give_back()
        return mixed

    def move(self, rows: torch.Tensor) -> None:
        """rows + (W − I)ᵀ X, where they are; X is overwritten. Instead of `wait`."""
        self._arrived()
        for columns in self._blocks(_BLOCK):
            sources = self._sources(columns)
            for target, terms in zip(rows[:, columns].unbind(), self._routes.moves, strict=True):
                if rows.dtype == torch.float64:  # rounded as the product of a simulation
                    if terms:
                        target.add_(_chain(sources, terms, None if self._alone else torch.empty_like(target)))
                else:  # a pass over the row less
                    for position, weight in terms:
                        target.add_(sources[position], alpha=weight)
        self._give_back()

    def _summed_in_place(self) -> torch.Tensor:
        """Σ_i w_i x_i where the one owned row is; no memory is touched but that of the rows."""
        for columns in self._blocks(_BLOCK):
            sources, terms = self._sources(columns), self._routes.terms[0]
            total = _chain(sources, terms, None) if terms else sources[0].zero_()
            if total is not sources[0]:
                sources[0].copy_(total)
        return self._rows

    def _summed(self, out: torch.Tensor | None) -> torch.Tensor:
        """Σ_i w_ij x_i for each owned node j, senders ascending, so that it does not matter who sits where."""
        rows, m = self._rows, len(self._rows)
        # Several rows that are written where they are read must all be summed up before the first is written.
        apart = m if out is not None and m > 1 else 1
        out = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
        width = max(1, _BLOCK // apart)
        memory = self._memory(apart, width)
        for columns in self._blocks(width):
            sources = self._sources(columns)
            sums = memory[:, : sources[0].numel()]
            if apart > 1:
                for target, terms in zip(sums.unbind(), self._routes.terms, strict=True):
                    _sum_up(sources, terms, target, target)
                out[:, columns] = sums
            else:
                for target, terms in zip(out[:, columns].unbind(), self._routes.terms, strict=True):
                    _sum_up(sources, terms, sums[0], target)
        self._buffers.give_back(memory)
        return out

    def _blocks(self, width: int) -> Iterator[slice]:
        """The columns block by block, so that sums stay in the cache."""
        return (slice(start, start + width) for start in range(0, self._rows.shape[1], width))

    def _sources(self, columns: slice) -> list[torch.Tensor]:
        """The rows by position: the owned ones, and those that have arrived."""
        rows, arrived = self._rows[:, columns], self._arriving[:, columns]
        return [*rows.unbind(), *arrived.to(rows.dtype).unbind()]

    def _memory(self, rows: int, width: int) -> torch.Tensor:
        return self._buffers.take(rows, min(width, self._rows.shape[1]), self._rows.dtype, self._rows.device)

    def _give_back(self) -> None:
        for tensor in self._lent:
            self._buffers.give_back(tensor)


def _chain(sources: list[torch.Tensor], terms: Terms, memory: torch.Tensor | None) -> torch.Tensor:
    """Σ w x, one fused multiply-add per term: in `memory`, or in that of the sources, from the own row on there."""
    (first, weight), *others = terms
    total = sources[first].mul_(weight) if memory is None else torch.mul(sources[first], weight, out=memory)
    for position, weight in others:
        there = sources[0] if memory is None and position == 0 else total
        total = torch.add(total, sources[position], alpha=weight, out=there)
    return total


def _sum_up(sources: list[torch.Tensor], terms: Terms, memory: torch.Tensor, out: torch.Tensor) -> None:
    """Σ w x into `out`, which may be one of the sources: it is written last, and `memory` before."""
    if not terms:
        out.zero_()
        return
    *others, (last, last_weight) = terms
    if not others:
        torch.mul(sources[last], last_weight, out=out)
        return
    total = _chain(sources, tuple(others), memory)
    torch.add(total, sources[last], alpha=last_weight, out=out)
