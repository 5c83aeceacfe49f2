"""Messages between the processes of a group: every wait is bounded, and what does not arrive has a name.

Gloo tells whether a message arrived only to who waits for it, and closes all connections of a process whose wait timed
out. So a process that gives up leaves a note in the store, and whoever then loses the connection to it looks there for
the reason: the message names the process that is missing, not the one that noticed it first.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn
from weakref import WeakSet

import torch
import torch.distributed as dist

from mixwise.errors import NetworkError
from mixwise.network.notes import Notes
from mixwise.network.poster import Poster
from mixwise.network.transfer import Round, Transfer

_NEVER_SENT = 2**31 - 1  # a tag
_LONG = 86400.0  # seconds that the poster may wait; who waits for the poster does so no longer than the timeout
_PARTING = 10.0  # seconds that the end of a program waits for the poster
_with_posters: WeakSet[Transport] = WeakSet()


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
        self.batched = "nccl" in dist.get_backend(group)  # there, calls one by one would wait for each other
        self._failure: NetworkError | None = None

    @property
    def default_device(self) -> torch.device:
        """Where a tensor must be to be sent."""
        return torch.device("cuda", torch.cuda.current_device()) if self.batched else torch.device("cpu")

    def name(self, peer: int) -> int:
        """The rank by which users know a peer."""
        return peer if self.group is None else dist.get_global_rank(self.group, peer)

    def post(self, rounds: Sequence[Round], operation: str, step: int | None, *, ahead: bool = False) -> Transfer:
        """Set messages going; all processes take part in the same operations in the same order.

        `ahead`: the caller has something else to do before it waits, so that a thread may do this, and go on with the
        next round as soon as one has arrived.
        """
        self._check_ready()
        transfer = Transfer(self, rounds, self._operations, operation, step)
        self._operations += len(rounds)
        self.sent += sum(message.tensor.nbytes for sends, _, _ in rounds for message in sends)
        if ahead and not self.batched and any(sends or receives for sends, receives, _ in rounds):
            if self._poster is None:
                self._poster = Poster()
                _with_posters.add(self)
            transfer.handed = self._poster.hand(lambda: transfer.post(_LONG))
            self._last = transfer
        else:
            transfer.post(self.timeout)
            transfer.check_posted()
        return transfer

    def _check_ready(self) -> None:
        """Whether there is still a way to the others; what was left to the poster is done first."""
        if self._failure is not None:
            raise self._failure
        if self._last is not None:
            last, self._last = self._last, None
            last.check_posted()

    def leave(self) -> None:
        """At the end of the program: have the poster come to an end.

        A thread that has waited for a message and goes on while Python shuts down would abort the process.
        """
        if self._last is not None and not self._last.posted_within(0):
            with suppress(Exception):  # the group may be gone
                self.close()
            self._last.posted_within(_PARTING)

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
            what = f"rank {missing} is missing (reported by rank {by}, which then stopped)"
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
        if self.batched:
            return
        for peer in range(self.world):
            if peer != self.rank:
                with suppress(RuntimeError):
                    work = dist.irecv(torch.empty(1), self.name(peer), group=self.group, tag=_NEVER_SENT)
                    assert work is not None  # this process is in the group
                    work.wait(timedelta(milliseconds=1))


@atexit.register
def _leave() -> None:
    for transport in list(_with_posters):
        transport.leave()
