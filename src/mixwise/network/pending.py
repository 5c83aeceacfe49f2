"""A gossip step between processes, from the moment when the rows have set out.

Legend: m owned rows of length d; r rows that arrive.
"""

from __future__ import annotations

import torch

from mixwise.network.buffers import BufferPool
from mixwise.network.routes import MixingRoutes
from mixwise.network.transport import Transfer

_BLOCK = 1 << 16  # numbers of one block of columns that is summed up before it is written: it stays in the cache


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

    def _summed(self, out: torch.Tensor | None) -> torch.Tensor:
        rows, arriving, (m, d) = self._rows, self._arriving, self._rows.shape
        if out is None:
            out = torch.empty_like(rows, memory_format=torch.contiguous_format)
            _add_terms([*rows.unbind(), *arriving.unbind()], self._routes, out)
            return out
        width = min(d, max(1, _BLOCK // m))
        memory = self._buffers.take(m, width, rows.dtype, rows.device)
        for start in range(0, d, width):  # block by block: rows and out may be the same tensor
            columns = slice(start, min(start + width, d))
            summed = memory[:, : columns.stop - columns.start]
            _add_terms([*rows[:, columns].unbind(), *arriving[:, columns].unbind()], self._routes, summed)
            out[:, columns] = summed
        self._buffers.give_back(memory)
        return out


def _add_terms(sources: list[torch.Tensor], routes: MixingRoutes, out: torch.Tensor) -> None:
    """Σ_i w_ij x_i for each owned node j, senders ascending, so that it does not matter who sits where."""
    for target, terms in zip(out.unbind(), routes.terms, strict=True):
        if not terms:
            target.zero_()
            continue
        (first, weight), *others = terms
        torch.mul(sources[first], weight, out=target)
        for position, weight in others:
            target.add_(sources[position], alpha=weight)
