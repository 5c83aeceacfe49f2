"""The mean of all rows, without a center, in two rounds of messages.

    1. every process sends to each other one the columns that are its,  x_r[P_p] → p
    2. each takes the mean of its columns and sends it to all,          Σ_r w x_r[P_p] → everybody

As many bytes as a ring all-reduce, 2 (n − 1)/n rows per process, but two waits for messages instead of 2 (n − 1).
"""

from __future__ import annotations

import torch

from mixwise.network.blocks import block
from mixwise.network.buffers import BufferPool
from mixwise.network.transfer import Message, Round
from mixwise.network.transport import Transport


class PendingAverage:
    """Σ_r w x_r under way, the same bits on all processes; x (1, d) must stay as it is until `wait` or `move` returns.

    Args:
        transport: the way to the others.
        buffers: memory.
        row: x, of this process.
        weight: w.
        operation, step: what this is, for errors.
        ahead: whether there is something else to be done before it is waited for.
    """

    def __init__(
        self,
        transport: Transport,
        buffers: BufferPool,
        row: torch.Tensor,
        weight: float,
        operation: str,
        step: int | None,
        *,
        ahead: bool,
    ) -> None:
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
        self._transfer = transport.post(rounds, operation, step, ahead=ahead)

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean, in a new tensor or in `out`, which may be the row itself; to be called once."""
        self._transfer.wait()
        self._buffers.give_back(self._pieces)
        if out is None:
            return self._mean  # it leaves the pool
        out.copy_(self._mean)
        self._buffers.give_back(self._mean)
        return out

    def move(self, rows: torch.Tensor) -> None:
        """rows + (mean − X), where they are. Instead of `wait`."""
        self._transfer.wait()
        rows.sub_(self._row).add_(self._mean)
        self._buffers.give_back(self._pieces)
        self._buffers.give_back(self._mean)
