"""A gossip step between processes, from the moment when the rows have set out.

Legend: m owned rows of length d; r rows that arrive.
"""

from __future__ import annotations

import torch

from mixwise.network.buffers import BufferPool
from mixwise.network.packing import Cast, Packing
from mixwise.network.routes import MixingRoutes
from mixwise.network.sums import block_width, column_blocks, sum_in_place, sum_terms
from mixwise.network.transfer import Transfer


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
        memory = None if self._alone else self._memory(2, block_width(rows.shape[1], 1))
        for columns in column_blocks(rows.shape[1], 1):
            sources = self._sources(columns)
            for target, terms in zip(rows[:, columns].unbind(), self._routes.moves, strict=True):
                if terms and memory is None:
                    target.add_(sum_in_place(sources, terms))
                elif terms and memory is not None:
                    total, product = memory[:, : target.numel()]
                    sum_terms(sources, terms, total, product)
                    target.add_(total)
        self._give_back()

    def _summed_in_place(self) -> torch.Tensor:
        """Σ_i w_i x_i where the one owned row is; no memory is touched but that of the rows."""
        for columns in column_blocks(self._rows.shape[1], 1):
            sources = self._sources(columns)
            total = sum_in_place(sources, self._routes.terms[0])
            if total is not sources[0]:
                sources[0].copy_(total)
        return self._rows

    def _summed(self, out: torch.Tensor | None) -> torch.Tensor:
        """Σ_i w_ij x_i for each owned node j, senders ascending, so that it does not matter who sits where."""
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
        rows, arrived = self._rows[:, columns], self._arriving[:, columns]
        return [*rows.unbind(), *arrived.to(rows.dtype).unbind()]

    def _memory(self, rows: int, width: int) -> torch.Tensor:
        """Memory for rows of one block of columns; given back with the rest."""
        self._lent.append(self._buffers.take(rows, width, self._rows.dtype, self._rows.device))
        return self._lent[-1]

    def _give_back(self) -> None:
        for tensor in self._lent:
            self._buffers.give_back(tensor)
