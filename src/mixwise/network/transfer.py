"""Messages under way: one or several rounds, each computed from what the previous one delivered.

A thread can post them while the caller computes. Gloo holds a lock while it takes a message, and its own thread spins
on that lock if the peer answers at once. Posting wakes other threads, and the first to be preempted for them is a
thread that has computed all the time: with more processes than cores it lost a millisecond there while holding the
lock. A thread that mostly sleeps is not preempted.
"""

from __future__ import annotations

import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from mixwise.network.transport import Transport

_LOOK = 0.05  # seconds between two looks at whether the members have changed
_TAGS = 256  # rounds that cannot be mistaken for each other before their tags are used again
_Jobs: TypeAlias = "SimpleQueue[tuple[Callable[[], None], threading.Event] | None]"


class Message(NamedTuple):
    """A tensor for, or from, a peer."""

    peer: int  # rank in the group
    tensor: torch.Tensor


class Round(NamedTuple):
    """Messages that travel at the same time."""

    sends: Sequence[Message]
    receives: Sequence[Message]
    prepare: Callable[[], object] = lambda: None  # writes what is sent, when the round before has arrived


class Transfer:
    """Rounds of messages under way; they keep their tensors alive."""

    def __init__(
        self, transport: Transport, rounds: Sequence[Round], number: int, operation: str, step: int | None
    ) -> None:
        self.transport, self.operation, self.step = transport, operation, step
        self.handed: threading.Event | None = None  # set when the poster has posted the last round
        self._rounds, self._number = rounds, number
        self._arriving: list[tuple[Message, Any]] = []  # in the last round that was posted, and its works
        self._leaving: list[tuple[Message, Any]] = []  # in all rounds
        self._at: Message | None = None  # that is being handed over, or waited for
        self._problem: Exception | None = None  # with that message

    def post(self, patience: float, *, to_the_end: bool = False) -> None:
        """Post one round after the other until one fails; `patience` is in seconds, for each arrival.

        With `to_the_end`, also wait for the last one: gloo may miss that a connection is closed while it waits, so a
        caller that must not be stuck then leaves it to a thread.
        """
        try:
            if self.transport.batched:
                self._post_batches(patience)
            else:
                self._post_one_by_one(patience)
            if to_the_end:
                self._await_all(time.monotonic() + patience)
        except Exception as error:
            self._problem = error
        self._rounds = ()

    def _post_one_by_one(self, patience: float) -> None:
        # All receives first: gloo tells the peer that it may send, and that must not queue up behind our own rows.
        # With sends first, a slow link carried one direction after the other and took twice as long.
        numbers = range(self._number, self._number + len(self._rounds))
        arrivals = [
            [self._handed_over(dist.irecv, message, number) for message in receives if message.tensor.nbytes > 0]
            for number, (_, receives, _) in zip(numbers, self._rounds, strict=True)
        ]
        for number, (sends, _, prepare), arriving in zip(numbers, self._rounds, arrivals, strict=True):
            self._await(self._arriving, time.monotonic() + patience)
            prepare()
            self._leaving += [
                self._handed_over(dist.isend, message, number) for message in sends if message.tensor.nbytes > 0
            ]
            self._arriving = arriving

    def _handed_over(self, call: Callable[..., Any], message: Message, number: int) -> tuple[Message, Any]:
        self._at, transport = message, self.transport
        tag = _tag(number, message)
        return message, call(message.tensor, transport.name(message.peer), group=transport.group, tag=tag)

    def _post_batches(self, patience: float) -> None:
        """Post all messages of a round at once, as nccl requires; one work for all of them."""
        name, group = self.transport.name, self.transport.group
        for sends, receives, prepare in self._rounds:
            self._await(self._arriving, time.monotonic() + patience)
            prepare()
            calls = [(dist.irecv, message) for message in receives] + [(dist.isend, message) for message in sends]
            ops = [dist.P2POp(c, m.tensor, name(m.peer), group) for c, m in calls if m.tensor.nbytes > 0]
            self._arriving = [(calls[0][1], work) for work in (dist.batch_isend_irecv(ops) if ops else [])]

    def _await(self, works: list[tuple[Message, Any]], deadline: float) -> None:
        for self._at, work in works:
            work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.05)))

    def posted_within(self, seconds: float) -> bool:
        """Whether the poster posts the last round, or gives up, within so many seconds."""
        return self.handed is None or self.handed.wait(seconds)

    def check_posted(self, deadline: float | None = None) -> None:
        """Wait until all rounds are posted; with one round that takes no time, unless it failed."""
        deadline = time.monotonic() + self.transport.timeout if deadline is None else deadline
        while not self.posted_within(_LOOK):
            self.transport.check_unchanged()
            if time.monotonic() > deadline:
                self._problem = RuntimeError("timed out")
                break
        if self._problem is not None:
            if self._at is None or not isinstance(self._problem, RuntimeError):
                raise self._problem
            self.transport.fail(self._at.peer, self._problem, self.operation, self.step)

    def wait(self) -> None:
        """Wait until all messages have arrived, and those sent may be overwritten; one timeout for all of them."""
        deadline = time.monotonic() + self.transport.timeout
        self.check_posted(deadline)
        try:
            self._await_all(deadline)
        except RuntimeError as error:
            assert self._at is not None
            self.transport.fail(self._at.peer, error, self.operation, self.step)

    def _await_all(self, deadline: float) -> None:
        self._await(self._arriving, deadline)
        self._await(self._leaving, deadline)
        self._arriving, self._leaving = [], []


class Poster:
    """A thread that runs one job after the other; it ends when the poster is no longer referenced."""

    def __init__(self) -> None:
        self._jobs: _Jobs = SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        threading.Thread(target=_work, args=(self._jobs,), name="mixwise poster", daemon=True).start()

    def hand(self, job: Callable[[], None]) -> threading.Event:
        """Queue a job, which must not raise; the returned event is set when it is done."""
        done = threading.Event()
        self._jobs.put((job, done))
        return done


def _work(jobs: _Jobs) -> None:
    while (task := jobs.get()) is not None:
        job, done = task
        try:
            job()
        finally:
            done.set()
        del task, job, done  # do not keep their tensors alive


def _tag(number: int, message: Message) -> int:
    """A tag per round and size: gloo ends a process that receives a message of another size than it expects.

    With another tag such a message is never received, which a bounded wait reports.
    """
    return zlib.crc32(b"%d/%d" % (number % _TAGS, message.tensor.nbytes)) >> 1
