"""Messages between the processes of a group: every wait is bounded, and what does not arrive has a name.

Gloo tells whether a message arrived only to who waits for it, and closes all connections of a process whose wait timed
out. So a process that gives up leaves a note in the store, and whoever then loses the connection to it looks there for
the reason: the message names the process that is missing, not the one that noticed it first.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from mixwise.errors import NetworkError
from mixwise.network.notes import Notes
from mixwise.network.poster import Poster

_NEVER_SENT = 2**31 - 1  # a tag
_TAGS = 256  # messages that cannot be mistaken for each other before names are used again


class Message(NamedTuple):
    """A tensor for, or from, a peer."""

    peer: int  # rank in the group
    tensor: torch.Tensor


class Transport:
    """Sends and receives tensors among the processes of a group.

    Args:
        group: the processes; all of them by default.
        timeout: the longest wait of one operation, in seconds.

    Attributes:
        sent: bytes of all tensors that this process has handed over for sending.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise NetworkError(
                "there is no process group; call torch.distributed.init_process_group first, and start with torchrun"
            )
        if not (timeout > 0 and math.isfinite(timeout)):
            raise NetworkError(f"timeout = {timeout}; every wait is bounded, by a number of seconds above 0")
        self.group, self.timeout = group, timeout
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise NetworkError("this process is not in the group; make the network on its members only")
        self.sent = 0
        self._poster: Poster | None = None
        self._last: Transfer | None = None  # that was left to it
        self.notes = "mixwise"  # where processes that give up leave a word, in the store
        self._operations = 0
        self._batched = "nccl" in dist.get_backend(group)  # there, calls one by one would wait for each other
        self._failure: NetworkError | None = None

    @property
    def default_device(self) -> torch.device:
        """Where a tensor must be to be sent."""
        return torch.device("cuda", torch.cuda.current_device()) if self._batched else torch.device("cpu")

    def name(self, peer: int) -> int:
        """The rank by which users know a peer."""
        return peer if self.group is None else dist.get_global_rank(self.group, peer)

    def post(
        self,
        sends: Sequence[Message],
        receives: Sequence[Message],
        operation: str,
        step: int | None,
        *,
        ahead: bool = False,
    ) -> Transfer:
        """Set everything going at once; all processes take part in the same operations in the same order.

        `ahead`: the caller has something else to do before it waits, so that a thread may do this.
        """
        self._check_ready()
        number = self._operations % _TAGS
        self._operations += 1
        sends, receives = ([message for message in them if message.tensor.nbytes > 0] for them in (sends, receives))
        self.sent += sum(message.tensor.nbytes for message in sends)
        # Receives first: gloo tells the peer that it may send, and that word must not queue up behind our own rows.
        # With sends first a slow link carried one direction after the other and took twice as long.
        calls: list[tuple[Any, Message]] = [(dist.irecv, message) for message in receives]
        calls += [(dist.isend, message) for message in sends]
        transfer = Transfer(self, operation, step)
        if self._batched:
            transfer.post_batch(calls)
        elif ahead and calls:
            if self._poster is None:
                self._poster = Poster()
            transfer.handed = self._poster.hand(lambda: transfer.post(calls, number))
            self._last = transfer
        else:
            transfer.post(calls, number)
            transfer.check_posted()
        return transfer

    def _check_ready(self) -> None:
        """Whether there is still a way to the others; what was left to the poster is done first."""
        if self._failure is not None:
            raise self._failure
        if self._last is not None:
            last, self._last = self._last, None
            last.check_posted()

    def post_sum(self, tensor: torch.Tensor, operation: str, step: int | None) -> Sum:
        """Set an all-reduce going that leaves the sum over all processes in the tensor, the same bits everywhere."""
        self._check_ready()
        self.sent += 2 * (self.world - 1) * tensor.numel() * tensor.element_size() // self.world
        try:
            return Sum(self, tensor, dist.all_reduce(tensor, group=self.group, async_op=True), operation, step)
        except RuntimeError as error:
            self.fail_together(error, operation, step)

    def fail_together(self, error: RuntimeError, operation: str, step: int | None) -> NoReturn:
        """The same for operations in which everybody waits for everybody: whoever gives no sign of life is missing."""
        notes = Notes(self.notes, self.name(self.rank))
        notes.sign()
        self.close()  # so that the others notice, and sign as well
        for peer in range(self.world):
            if peer != self.rank and not notes.signed(self.name(peer)):
                self.fail(peer, error, operation, step)
        where = operation if step is None else f"{operation}, step {step}"
        self._failure = NetworkError(
            f"{where}: it failed though all ranks live ({error}); if they are only slow, raise the timeout",
            operation=operation,
            step=step,
        )
        raise self._failure from error

    def fail(self, peer: int, error: RuntimeError, operation: str, step: int | None) -> NoReturn:
        """Say who is missing, here and to the others, and leave: after this the connections are of no use."""
        timed_out = "timed out" in str(error).lower()
        notes = Notes(self.notes, self.name(self.rank))
        notes.leave(self.name(peer))
        self.close()
        missing, by = notes.follow(self.name(peer))
        if missing == self.name(self.rank):
            what = (
                f"rank {by} gave up waiting for this process, rank {missing}, which was late by more than the timeout"
            )
        elif by is not None:
            what = f"rank {missing} is missing, says rank {by}, which therefore gave up"
        elif timed_out:
            what = f"rank {missing} did not answer within {self.timeout:g} s; if it is only slow, raise the timeout"
        else:
            what = f"rank {missing} is gone, its connection was closed"
        where = operation if step is None else f"{operation}, step {step}"
        self._failure = NetworkError(
            f"{where}: {what}; see what rank {missing} wrote last", missing=(missing,), operation=operation, step=step
        )
        raise self._failure from error

    def close(self) -> None:
        """Close all connections of this process, so that nobody waits for it any longer.

        Gloo has no call for it, and destroying the group waits for what is under way. But a receive that times out
        closes everything; one from a process that is gone fails and closes nothing, hence one from each.
        """
        if self._batched:
            return
        for peer in range(self.world):
            if peer != self.rank:
                with suppress(RuntimeError):
                    work = dist.irecv(torch.empty(1), self.name(peer), group=self.group, tag=_NEVER_SENT)
                    assert work is not None  # this process is in the group
                    work.wait(timedelta(milliseconds=1))


def _tag(number: int, message: Message) -> int:
    """A message of another size or of another operation than the one expected must not be taken for it: gloo ends the
    process then. With a tag of its own it is never received, which a bounded wait reports."""
    return zlib.crc32(b"%d/%d" % (number, message.tensor.nbytes)) >> 1


class Transfer:
    """Messages under way."""

    def __init__(self, transport: Transport, operation: str, step: int | None) -> None:
        self.transport, self.operation, self.step = transport, operation, step
        self.handed: threading.Lock | None = None  # free when the poster has posted them
        self._works: list[tuple[Message, Any]] = []  # the messages keep their tensors alive
        self._problem: tuple[Message, Exception] | None = None  # that came up when they were posted

    def post(self, calls: list[tuple[Any, Message]], number: int) -> None:
        """Hand them over, one after the other, until one is refused."""
        transport = self.transport
        for call, message in calls:
            try:
                work = call(
                    message.tensor, transport.name(message.peer), group=transport.group, tag=_tag(number, message)
                )
            except Exception as error:
                self._problem = message, error
                return
            self._works.append((message, work))

    def post_batch(self, calls: list[tuple[Any, Message]]) -> None:
        """All at once, as nccl wants it."""
        name, group = self.transport.name, self.transport.group
        ops = [dist.P2POp(call, message.tensor, name(message.peer), group) for call, message in calls]
        works = dist.batch_isend_irecv(ops) if ops else []  # one for all of them
        self._works = [(message, work) for work in works for _, message in calls]

    def check_posted(self) -> None:
        """Wait until they are handed over; that takes no time, unless something went wrong."""
        if self.handed is not None:
            if not self.handed.acquire(timeout=self.transport.timeout):
                raise NetworkError(f"{self.operation}: messages could not be handed over in {self.transport.timeout} s")
            self.handed = None
        if self._problem is not None:
            message, error = self._problem
            if not isinstance(error, RuntimeError):
                raise error
            self.transport.fail(message.peer, error, self.operation, self.step)

    def wait(self) -> None:
        """Until all have arrived, and all that was sent may be overwritten; the timeout is for all of them."""
        deadline = time.monotonic() + self.transport.timeout
        self.check_posted()
        for message, work in self._works:
            try:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.05)))
            except RuntimeError as error:
                self.transport.fail(message.peer, error, self.operation, self.step)
        self._works = []


class Sum:
    """An all-reduce under way."""

    def __init__(self, transport: Transport, tensor: torch.Tensor, work: Any, operation: str, step: int | None) -> None:
        self.transport, self.tensor, self.work, self.operation, self.step = transport, tensor, work, operation, step

    def wait(self) -> None:
        """Until the sum is there."""
        try:
            self.work.wait(timedelta(seconds=self.transport.timeout))
        except RuntimeError as error:
            self.transport.fail_together(error, self.operation, self.step)
