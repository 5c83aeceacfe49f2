"""The processes that share a run: one in a simulation, several under torchrun or a launcher like it.

A store that outlives restarts, that of torchrun on one machine or the one that `MIXWISE_BOARD` names, still holds the
notes of earlier groups of processes. Every group therefore takes a new name when it meets; notes that must outlive a
restart are written without it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mixwise import errors
from mixwise.errors import MixwiseError, NetworkError
from mixwise.graphs import Graph
from mixwise.network.addresses import is_loopback, listening_store
from mixwise.network.board import Board, until
from mixwise.network.distributed import DistributedNetwork
from mixwise.network.simulated import SimulatedNetwork
from mixwise.network.transport import leave_at_once
from mixwise.protocols import Network

Value = TypeVar("Value")

BOARD = "MIXWISE_BOARD"  # ADDRESS:PORT of a store that outlives restarts, where the one of torchrun does not
_SET_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@contextmanager
def world_of_this_process(timeout: float) -> Iterator[World]:
    """Connect the processes that were started together with this one, if any, and disconnect them at the end."""
    env = os.environ
    if not all(name in env for name in (*_SET_BY_LAUNCHERS, "MASTER_ADDR")):
        yield World()
        return
    world = Processes.meet(timeout)
    try:
        yield world
    except BaseException:
        leave_at_once()  # so that no other process waits for this one
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


class World:
    """The processes of a run, and how they agree on what only one of them does: here one process, a simulation.

    Attributes:
        rank: of this process; 0 writes, prints and decides.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    def network(self, graph: Graph, device: str = "cpu", wire_dtype: torch.dtype | None = None) -> Network:
        """Return a network of all nodes of a graph, divided over the processes; rows are kept on `device`."""
        return SimulatedNetwork(graph, wire_dtype=wire_dtype)

    def decide(self, decision: Callable[[], Value]) -> Value:
        """Return, on all processes, the value (of JSON) that process 0 computes, or raise its error."""
        return decision()

    def first_to_fail(self) -> bool:
        """Whether this process, which ends with an error, is the first to do so, and therefore reports it."""
        return True

    def note(self, name: str, value: str) -> None:
        """Leave a note that outlives a restart of the processes."""

    def recall(self, name: str) -> str | None:
        """Return a note that was left since the processes were first launched, if there is one."""
        return None


class Processes(World):
    """A world of several processes, which must call the same methods in the same order.

    Args:
        board: where they leave notes for each other.
        rank, size: of this process, and the number of processes.
        group: the name of this group of processes.
        timeout: the longest wait for the others, in seconds.
    """

    def __init__(self, board: Board, rank: int, size: int, group: str, timeout: float) -> None:
        self.board, self.rank, self.size, self.group, self.timeout = board, rank, size, group, timeout
        self._decisions = 0
        self._backend: str | None = None

    @classmethod
    def meet(cls, timeout: float) -> Processes:
        """Find the other processes, from the environment variables that the launcher has set."""
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
        return cls(board, rank, size, _name_of_group(board, rank, size, timeout), timeout)

    def network(self, graph: Graph, device: str = "cpu", wire_dtype: torch.dtype | None = None) -> Network:
        """Return a network of all nodes of a graph; the first call connects the processes."""
        backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
        if not dist.is_initialized():
            self._connect(backend)
        elif backend not in (self._backend, "gloo"):
            raise NetworkError(f"device = {device!r} after another kind; choose variants on one kind of device")
        return DistributedNetwork(graph, timeout=self.timeout, wire_dtype=wire_dtype)

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

    # --- agreement ---
    def decide(self, decision: Callable[[], Value]) -> Value:
        """Return, on all processes, the value (of JSON) that process 0 computes, or raise its error."""
        name, self._decisions = f"{self.group}/decision/{self._decisions}", self._decisions + 1
        value: Value
        if self.rank > 0:
            late = f"no decision of rank 0 within {self.timeout:g} s; see what rank 0 wrote last"
            note = self.board.awaited(name, self.timeout, late)
            if "error" in note:
                raise getattr(errors, note["error"])(note["message"])
            value = note["value"]
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
        """Leave a note that outlives a restart of the processes."""
        self.board.write(f"notes/{name}", value)

    def recall(self, name: str) -> str | None:
        """Return a note that was left since the processes were first launched, if there is one."""
        value: str | None = self.board.read(f"notes/{name}")
        return value


def _name_of_group(board: Board, rank: int, size: int, timeout: float) -> str:
    """Agree on a name: rank 0 makes one up and tells it to every rank that asks with a unique word."""
    if rank > 0:
        word = uuid.uuid4().hex
        board.write(f"asks/{rank}", word)
        late = f"rank {rank} looks for rank 0: no answer within {timeout:g} s; see what rank 0 wrote last"
        told: str = board.awaited(f"answer/{word}", timeout, late)
        board.write(f"{told}/met/{rank}", True)
        return told
    name, answered, missing = uuid.uuid4().hex, dict.fromkeys(range(1, size), ""), list(range(1, size))

    def all_met() -> bool:
        missing[:] = [other for other in missing if not board.has(f"{name}/met/{other}")]
        for other in missing:
            word = board.read(f"asks/{other}") or ""
            if word != answered[other]:  # perhaps that of an earlier process, which will not read it
                board.write(f"answer/{word}", name)
                answered[other] = word
        return not missing

    if not until(all_met, timeout):
        raise NetworkError(
            f"rank 0 has waited {timeout:g} s for rank {', '.join(map(str, missing))} of {size} processes; "
            f"check that they were started, and that they reach {os.environ['MASTER_ADDR']}"
        )
    return name
