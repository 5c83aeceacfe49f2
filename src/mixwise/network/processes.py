"""The processes that torchrun, or a launcher like it, has started for one run: how they meet, agree and part.

A store that outlives restarts, that of torchrun on one machine or the one that `MIXWISE_BOARD` names, still holds what
an earlier group of processes has left. So every group takes a name of its own when it meets; notes for those who come
after a restart go without it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mixwise import errors
from mixwise.errors import MixwiseError, NetworkError
from mixwise.graphs import Graph
from mixwise.network.board import Board, is_loopback, listening_store
from mixwise.network.distributed import DistributedNetwork
from mixwise.network.membership import GRACE, SUPERVISED, Membership, leave_at_once
from mixwise.network.world import Alone, Value, World
from mixwise.protocols import Network

BOARD = "MIXWISE_BOARD"  # ADDRESS:PORT of a store that outlives restarts, where the one of torchrun does not
_TICK = 0.02
_SET_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def world_of_this_process(timeout: float) -> Iterator[World]:
    """The processes that were started together with this one, or this one alone; they part in the end."""
    if not all(name in os.environ for name in _SET_BY_LAUNCHERS):
        yield Alone()
        return
    world = Processes.meet(timeout)
    try:
        yield world
    except BaseException:
        leave_at_once()  # so that nobody waits for us
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


class Processes:
    """A world of several processes; all of them must ask the same of it in the same order.

    Args:
        board: where they leave notes for each other.
        rank, size: of this process, and how many there are.
        group: the name of this group of processes.
        timeout: the longest wait for the others, in seconds.
        membership: how they go on without those that are lost, if they do.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        size: int,
        group: str,
        timeout: float,
        membership: Membership | None = None,
    ) -> None:
        self.board, self.rank, self.size, self.group, self.timeout = board, rank, size, group, timeout
        self.members: tuple[int, ...] = tuple(range(size))
        self._membership, self.survives = membership, membership is not None
        self._decisions = 0
        self._backend: str | None = None

    @classmethod
    def meet(cls, timeout: float) -> Processes:
        """Find the others, by what the launcher has told this process in its environment."""
        env = os.environ
        rank, size, host, port = int(env["RANK"]), int(env["WORLD_SIZE"]), env["MASTER_ADDR"], int(env["MASTER_PORT"])
        if BOARD in env:
            kept, _, at = env[BOARD].rpartition(":")
            if not kept or not at.isdecimal():
                raise NetworkError(f"{BOARD}={env[BOARD]}: must be an address and a port, such as 10.0.0.1:29500")
            board = Board.at(kept.strip("[]"), int(at), timeout)
        elif env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or rank > 0:
            board = Board.at(host, port, timeout)
        elif is_loopback(host):  # a launcher that leaves the store to rank 0
            board = Board(listening_store(host, port))
        else:
            board = Board(TCPStore(host, port, is_master=True, wait_for_workers=False))
        group = _name_of_group(board, rank, size, timeout)
        membership = Membership(board, rank, size, float(env[GRACE])) if env.get(SUPERVISED) == "1" else None
        return cls(board, rank, size, group, timeout, membership)

    def network(self, graph: Graph, device: str = "cpu") -> Network:
        """A network of all nodes of a graph, divided over the processes; the first one connects them if nobody has."""
        backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
        if not dist.is_initialized():
            self._connect(backend)
        elif backend not in (self._backend, "gloo"):
            raise NetworkError(
                f"device = {device!r} after another kind of device; choose variants that all run on the same kind"
            )
        return DistributedNetwork(graph, timeout=self.timeout)

    def _connect(self, backend: str) -> None:
        if "nccl" in backend:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        store = PrefixStore(f"mixwise/group/{self.group}", self.board.store)
        try:
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=timedelta(seconds=self.timeout)
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise NetworkError(f"rank {self.rank} cannot connect to the other processes: {reason}") from None
        self._backend = backend

    def reform(self, error: NetworkError, at: tuple[int, ...]) -> tuple[int, ...]:
        """Form a group with those who are left, under `mixwise launch --on-loss continue`."""
        if self._membership is None:
            raise error
        backend = self._backend or "gloo"
        generation = self._membership.reform(at, self.timeout, backend)
        self.members = generation.members
        self.rank, self.size = self.members.index(self._membership.rank), len(self.members)
        self.group, self._decisions, self._backend = f"generation-{generation.number}", 0, backend
        return generation.at

    # --- to agree ---
    def decide(self, decision: Callable[[], Value]) -> Value:
        """What process 0 comes to, on all of them; its error is an error on all of them."""
        name, self._decisions = f"{self.group}/decision/{self._decisions}", self._decisions + 1
        if self.rank > 0:
            note = _awaited(self.board, name, self.timeout, f"rank {self.rank} waits for a decision of rank 0")
            if "error" in note:
                raise getattr(errors, note["error"])(note["message"])
            value: Value = note["value"]
            return value
        try:
            value = decision()
        except MixwiseError as error:
            self.board.write(name, {"error": type(error).__name__, "message": str(error)})
            raise
        self.board.write(name, {"value": value})
        return value

    def first_to_fail(self) -> bool:
        """Whether this process is the first that ends with an error, or cannot know."""
        try:
            return self.board.count(f"{self.group}/failed", 1) == 1
        except NetworkError:
            return True

    def note(self, name: str, value: str) -> None:
        """Leave a note for those who come after a restart."""
        self.board.write(f"notes/{name}", value)

    def recall(self, name: str) -> str | None:
        """A note that was left since the processes were first launched, if there is one."""
        value: str | None = self.board.read(f"notes/{name}")
        return value


def _name_of_group(board: Board, rank: int, size: int, timeout: float) -> str:
    """Rank 0 makes up a name and tells it to whoever asks with a word that nobody has used before."""
    if rank > 0:
        word = uuid.uuid4().hex
        board.write(f"asks/{rank}", word)
        name: str = _awaited(board, f"answer/{word}", timeout, f"rank {rank} looks for rank 0")
        board.write(f"{name}/met/{rank}", True)
        return name
    name, answered, last = uuid.uuid4().hex, dict.fromkeys(range(1, size), ""), time.monotonic() + timeout
    while missing := [other for other in answered if not board.has(f"{name}/met/{other}")]:
        for other in missing:
            word = board.read(f"asks/{other}") or ""
            if word != answered[other]:  # perhaps that of an earlier process, which will not read it
                board.write(f"answer/{word}", name)
                answered[other] = word
        if time.monotonic() > last:
            raise NetworkError(
                f"rank 0 has waited {timeout:g} s for rank {', '.join(map(str, missing))} of {size} processes; "
                f"see whether they were started, and whether they reach {os.environ['MASTER_ADDR']}"
            )
        time.sleep(_TICK)
    return name


def _awaited(board: Board, name: str, timeout: float, what: str) -> Any:
    """The note, as soon as it is there."""
    last = time.monotonic() + timeout
    while not board.has(name):
        if time.monotonic() > last:
            raise NetworkError(f"{what}: no answer within {timeout:g} s; see what rank 0 wrote last")
        time.sleep(_TICK)
    return board.read(name)
