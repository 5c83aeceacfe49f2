"""Messages between the processes of a group: every wait is bounded, and errors name the rank that is missing.

Gloo reports whether a message arrived only to the process that waits for it, and closes all connections of a process
whose wait timed out. A process that gives up therefore leaves a note in the store, where others that lose the
connection to it find the reason: their errors name the missing process, not the one that noticed it first.
"""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from mixwise.errors import NetworkError
from mixwise.network.board import Board
from mixwise.network.transfer import Message, Poster, Round, Transfer

_NEVER_SENT = 2**31 - 1  # a tag
_LONG = 86400.0  # seconds that the poster may wait; waits for the poster are bounded by the timeout
_PARTING = 10.0  # seconds that the end of a program waits for the poster
_NOTES = 1.0  # seconds within which a process that gave up has left its note
_with_posters: WeakSet[Transport] = WeakSet()
_MADE = "mixwise"  # torch's name for connections of gloo that existed before their group
_made: list[dist.ProcessGroupGloo] = []


def process_count() -> int | None:
    """The number of processes in the default group; None without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


class Transport:
    """Sends and receives tensors among the processes of a group.

    Args:
        group: the processes; all of them by default.
        timeout: the longest wait of one operation, in seconds.
        has_changed: whether another group is to take the place of this one; a wait then ends with an error, and a
            process that gives up does not tell the others which one is missing.

    Attributes:
        sent: bytes of all tensors that this process has posted for sending.
        notes: where processes that give up leave their notes, in the store.
        explain: given the missing rank and the known text about it, returns a better one if there is more to say.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, timeout: float, has_changed: Callable[[], bool] | None = None
    ) -> None:
        if process_count() is None:
            raise NetworkError("there is no process group; call torch.distributed.init_process_group under torchrun")
        if not (timeout > 0 and math.isfinite(timeout)):
            raise NetworkError(f"timeout = {timeout}; every wait is bounded, by a number of seconds above 0")
        self.group, self.timeout, self.has_changed = group, timeout, has_changed
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise NetworkError("this process is not in the group; make the network on its members only")
        self.peers = [rank for rank in range(self.world) if rank != self.rank]
        self.sent, self.notes = 0, "gave-up"
        self._poster: Poster | None = None
        self._last: Transfer | None = None  # that was left to it
        self._operations = 0
        self.batched = "nccl" in dist.get_backend(group)  # nccl calls one by one would wait for each other
        self._failure: NetworkError | None = None
        self.explain: Callable[[int, str], str] | None = None

    @property
    def failed(self) -> bool:
        """Whether a wait of this process has ended with an error; there are no messages after it."""
        return self._failure is not None

    @property
    def device(self) -> torch.device:
        """The device on which a tensor must be to be sent."""
        return torch.device("cuda", torch.cuda.current_device()) if self.batched else torch.device("cpu")

    def name(self, peer: int) -> int:
        """The global rank of a peer, by which users know it."""
        return peer if self.group is None else dist.get_global_rank(self.group, peer)

    def post(self, rounds: Sequence[Round], operation: str, step: int | None, *, ahead: bool = False) -> Transfer:
        """Start sending and receiving; all processes take part in the same operations in the same order.

        With `ahead`, the caller computes something else before it waits: a thread then posts the rounds, each as soon
        as the previous one has arrived.
        """
        self.check_unchanged()
        if self._failure is not None:
            raise self._failure
        if self._last is not None:
            last, self._last = self._last, None
            last.check_posted()
        transfer = Transfer(self, rounds, self._operations, operation, step)
        self._operations += len(rounds)
        self.sent += sum(message.tensor.nbytes for sends, _, _ in rounds for message in sends)
        watched = self.has_changed is not None  # the thread then waits for the messages as well
        if (ahead or watched) and not self.batched and any(sends or receives for sends, receives, _ in rounds):
            if self._poster is None:
                self._poster = Poster()
                _with_posters.add(self)
            patience = _LONG if ahead else self.timeout
            transfer.handed = self._poster.hand(lambda: transfer.post(patience, to_the_end=watched))
            self._last = transfer
        else:
            transfer.post(self.timeout)
            transfer.check_posted()
        return transfer

    def gather(
        self, rows: torch.Tensor, operation: str, step: int | None = None, blocks: Sequence[range] | None = None
    ) -> torch.Tensor:
        """Return the rows of all processes, each in its block; one row per process by default."""
        blocks = blocks or [range(rank, rank + 1) for rank in range(self.world)]
        everything, rows, own = rows.new_empty(blocks[-1].stop, rows.shape[1]), rows.contiguous(), blocks[self.rank]
        receives = [Message(peer, everything[blocks[peer].start : blocks[peer].stop]) for peer in self.peers]
        transfer = self.post([Round([Message(peer, rows) for peer in self.peers], receives)], operation, step)
        everything[own.start : own.stop] = rows
        transfer.wait()
        return everything

    def broadcast(self, tensor: torch.Tensor, operation: str) -> None:
        """Give every process the values of rank 0, in place; the processes that have them double in every round."""
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)  # as bytes: not every type can be sent
        reach = 1
        while reach < self.world and data.numel() > 0:
            sends, receives = [], []
            if self.rank < reach and self.rank + reach < self.world:
                sends.append(Message(self.rank + reach, data))
            elif reach <= self.rank < 2 * reach:
                receives.append(Message(self.rank - reach, data))
            self.post([Round(sends, receives)], operation, None).wait()
            reach *= 2
        with torch.no_grad():
            tensor.copy_(data.view(tensor.dtype).view(tensor.shape))

    # --- lost processes ---
    def check_unchanged(self) -> None:
        """Raise an error if another group is to take the place of this one."""
        if self.has_changed is not None and self.has_changed():
            self._failure = NetworkError("the processes that take part have changed")
            raise self._failure

    def fail(self, peer: int, error: RuntimeError, operation: str, step: int | None) -> NoReturn:
        """Tell the others which rank this process has missed, close all connections, and raise an error."""
        own, missing, reporter = self.name(self.rank), self.name(peer), None
        with suppress(ValueError):  # a NetworkError included: the store may have gone with the missing process
            if self.has_changed is None:
                self._board().write(f"{self.notes}/{own}", missing)
        self.close()
        seen, deadline = {own}, time.monotonic() + _NOTES
        with suppress(ValueError):
            while self.has_changed is None and missing not in seen:
                seen.add(missing)
                name = f"{self.notes}/{missing}"
                note = self._board().awaited(name, deadline - time.monotonic(), "it left no note, so it is the one")
                missing, reporter = note, missing
        if missing == own:
            what = f"rank {reporter} gave up waiting for this process, rank {own}, which exceeded the timeout"
        elif reporter is not None:
            what = f"rank {missing} is missing (reported by rank {reporter}, which then stopped)"
        elif "timed out" in str(error).lower():
            what = f"rank {missing} did not answer within {self.timeout:g} s; if it is only slow, raise the timeout"
        else:
            what = f"rank {missing} is gone, its connection was closed"
        told = f"{what}; see what rank {missing} wrote last"
        with suppress(NetworkError):
            told = told if self.explain is None else self.explain(missing, told)
        where = operation if step is None else f"{operation}, step {step}"
        self._failure = NetworkError(f"{where}: {told}", missing=(missing,), operation=operation, step=step)
        raise self._failure from error

    def _board(self) -> Board:
        return Board(dist.distributed_c10d._get_default_store(), "the store", 2 * _NOTES)

    def close(self) -> None:
        """Close all connections of this process, so that no other process waits for it any longer.

        Gloo has no call for it, and destroying the group waits for messages under way. But a receive that times out
        closes everything; one from a process that is gone fails and closes nothing, hence one from each.
        """
        if self.batched:
            return
        for peer in self.peers:
            with suppress(RuntimeError, ValueError):  # the group may be destroyed
                work = dist.irecv(torch.empty(1), self.name(peer), group=self.group, tag=_NEVER_SENT)
                assert work is not None  # this process is in the group
                work.wait(timedelta(milliseconds=1))

    def leave(self) -> None:
        """Stop the poster at the end of the program.

        A thread that has waited for a message and continues while Python shuts down would abort the process.
        """
        if self._last is not None and not self._last.posted_within(0):
            with suppress(Exception):  # the group may be gone
                self.close()
            self._last.posted_within(_PARTING)


def close_connections() -> None:
    """Close the connections of the default process group, so that no process waits for this one, or this one for it."""
    if not dist.is_initialized():
        return
    group = dist.group.WORLD
    assert group is not None
    for device in group._device_types:
        if device.type == "cpu":
            Transport(None, timeout=1.0).close()
        else:
            group._get_backend(device).abort()


def make_default_group(made: dist.ProcessGroupGloo, backend: str, store: Store, timeout: float) -> None:
    """Make connections of gloo that exist the default process group, where torch would make others.

    Args:
        made: the connections.
        backend: "gloo", or that and another one, as `init_process_group` takes them.
        store: for the other one.
        timeout: its longest wait, in seconds.
    """
    _made.append(made)
    if not hasattr(dist.Backend, _MADE.upper()):
        dist.Backend.register_backend(_MADE, lambda store, rank, size, timeout: _made.pop(), devices=["cpu"])
    dist.distributed_c10d._world.group_count = 0  # in the keys of the store, but not the same on all ranks
    hook = sys.excepthook
    dist.init_process_group(
        backend.replace("gloo", _MADE),
        store=store,
        rank=made.rank(),
        world_size=made.size(),
        timeout=timedelta(seconds=timeout),
    )
    sys.excepthook = hook  # torch would print "[rank0]: " once for every group so far


def leave_at_once() -> None:
    """Close the connections of the default process group, and destroy it."""
    close_connections()
    if dist.is_initialized():
        dist.destroy_process_group()


@atexit.register
def _leave() -> None:
    for transport in list(_with_posters):
        transport.leave()
