"""Messages between the processes of a group: every wait is bounded, and what does not arrive has a name.

Gloo tells whether a message arrived only to who waits for it, and closes all connections of a process whose wait timed
out. So a process that gives up leaves a note in the store, and whoever then loses the connection to it looks there for
the reason: the message names the process that is missing, not the one that noticed it first.
"""

from __future__ import annotations

import json
import math
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from mixwise.errors import NetworkError

GRACE = 1.0  # seconds in which a process that gave up has left its note
_TAGS = 256  # messages that cannot be mistaken for each other before names are used again


@dataclass(frozen=True)
class Message:
    """A tensor for, or from, a peer."""

    peer: int  # rank in the group
    tensor: torch.Tensor

    @property
    def bytes(self) -> int:
        """What it weighs."""
        return self.tensor.numel() * self.tensor.element_size()


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

    def post(self, sends: Sequence[Message], receives: Sequence[Message], operation: str, step: int | None) -> Transfer:
        """Set everything going at once; all processes take part in the same operations in the same order."""
        if self._failure is not None:
            raise self._failure
        # A message of another size or of another operation than the one expected must not be taken for it: gloo ends
        # the process then. With a tag of its own it is never received, which a bounded wait reports.
        prefix = f"{self._operations % _TAGS}"
        self._operations += 1
        transfer = Transfer(self, operation, step)
        calls: list[tuple[Any, Message]] = [(dist.irecv, message) for message in receives]
        calls += [(dist.isend, message) for message in sends]
        calls = [(call, message) for call, message in calls if message.bytes > 0]
        self.sent += sum(message.bytes for call, message in calls if call is dist.isend)
        if self._batched and calls:
            ops = [dist.P2POp(call, message.tensor, self.name(message.peer), self.group) for call, message in calls]
            works = dist.batch_isend_irecv(ops)  # one for all of them
            transfer.works += [(message, work) for work in works for _, message in calls]
            return transfer
        for call, message in calls:
            tag = zlib.crc32(f"{prefix}/{message.bytes}".encode()) >> 1
            try:
                work = call(message.tensor, self.name(message.peer), group=self.group, tag=tag)
            except RuntimeError as error:
                self.fail(message.peer, error, operation, step)
            transfer.works.append((message, work))
        return transfer

    def fail(self, peer: int, error: RuntimeError, operation: str, step: int | None) -> NoReturn:
        """Say who is missing, here and to the others; after this the connections are of no use."""
        timed_out = "timed out" in str(error).lower()
        notes = _Notes(self.notes, self.name(self.rank))
        missing, by = notes.explain(self.name(peer), operation, step)
        where = f"{operation}, step {step}" if step is not None else operation
        if missing == self.name(self.rank):
            what = f"rank {by} gave up waiting for this process, rank {missing}: it was late by more than the timeout"
        elif by is not None:
            what = f"rank {missing} is missing, says rank {by}, which therefore gave up"
        elif timed_out:
            what = f"rank {missing} did not answer within {self.timeout:g} s"
        else:
            what = f"rank {missing} is gone: the connection to it was closed"
        self._failure = NetworkError(
            f"{where}: {what}; see what rank {missing} wrote last"
            + ("; a larger timeout helps only if it is slow" if timed_out else ""),
            missing=(missing,),
            operation=operation,
            step=step,
        )
        raise self._failure from error


class Transfer:
    """Messages under way."""

    def __init__(self, transport: Transport, operation: str, step: int | None) -> None:
        self.transport, self.operation, self.step = transport, operation, step
        self.works: list[tuple[Message, Any]] = []  # the messages keep their tensors alive

    def wait(self) -> None:
        """Until all have arrived, and all that was sent may be overwritten; the timeout is for all of them."""
        deadline = time.monotonic() + self.transport.timeout
        for message, work in self.works:
            try:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.05)))
            except RuntimeError as error:
                self.transport.fail(message.peer, error, self.operation, self.step)
        self.works.clear()


class _Notes:
    """What processes that gave up have left in the store: whom they missed."""

    def __init__(self, prefix: str, rank: int) -> None:
        self.prefix, self.rank = prefix, rank

    def explain(self, peer: int, operation: str, step: int | None) -> tuple[int, int | None]:
        """Who is missing in the end, and who said so if it was not seen here; leaves a note as well.

        In a thread, since the store itself may be gone and not every store has bounded waits.
        """
        found: list[tuple[int, int | None]] = [(peer, None)]
        thread = threading.Thread(target=self._follow, args=(found, operation, step), daemon=True)
        thread.start()
        thread.join(GRACE + 1)
        return found[-1]

    def _follow(self, found: list[tuple[int, int | None]], operation: str, step: int | None) -> None:
        try:
            store = dist.distributed_c10d._get_default_store()
            suspect, _ = found[0]
            store.set(f"{self.prefix}/{self.rank}", json.dumps([suspect, operation, step]))
            seen, deadline = {self.rank}, time.monotonic() + GRACE
            while suspect not in seen and time.monotonic() < deadline:
                seen.add(suspect)
                key = f"{self.prefix}/{suspect}"
                while not store.check([key]) and time.monotonic() < deadline:
                    time.sleep(0.02)
                if store.check([key]):  # it lives, or did until it missed somebody
                    by, (suspect, *_) = suspect, json.loads(store.get(key))
                    found.append((suspect, by))
        except Exception:  # whatever a store raises: it may have gone with the process that is missing
            return
