"""Functions run in several processes that talk through gloo on the loopback interface.

    def work(rank, world, x): ...        # at the top of a test module, since the processes import it from there
    results = run_in_processes(4, work, x)

The processes stay for the whole session, since importing torch takes longer than most tests; every call makes a process
group of its own. A function that hangs is ended after `timeout`, with all processes, and the next call starts new ones.
Functions that kill themselves or stop go into `run_in_fresh_processes`.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mixwise.errors import MixwiseError

# Processes are forked from one that has imported everything and does nothing else.
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "torch._dynamo", "mixwise"])  # torch's optimizers need _dynamo

# With xdist, all tests that start processes run one after the other, in one worker (--dist loadgroup).
in_processes = pytest.mark.xdist_group("processes")


@dataclass(frozen=True)
class Outcome:
    """How a process ended: with a result, with an error (its traceback as text), or with neither, by a signal."""

    result: Any = None
    error: str | None = None
    exitcode: int | None = None

    @property
    def value(self) -> Any:
        """The result; the error of the process is an error here."""
        assert self.error is None, self.error
        return self.result


class ProcessesError(AssertionError):
    """One or more of the processes failed; the message holds their tracebacks."""


def run_in_processes(world: int, function: Callable[..., Any], *args: Any, timeout: float = 200.0) -> list[Any]:
    """[function(rank, world, *args) for every rank], at the same time, in a process group of `world` processes."""
    global _pool
    _pool = _pool or _Pool()
    try:
        outcomes = _pool.run(world, function, args, timeout)
        if any(outcome.exitcode is not None for outcome in outcomes):
            raise ProcessesError(_failures(outcomes))  # this pool has lost a process
    except BaseException:  # an interrupt too: what the processes are doing is unknown
        _pool.kill()
        _pool = None
        raise
    if failed := _failures(outcomes):
        raise ProcessesError(failed)
    return [outcome.result for outcome in outcomes]


def run_in_fresh_processes(
    world: int, function: Callable[..., Any], *args: Any, timeout: float = 200.0
) -> list[Outcome]:
    """The same in processes of their own, which may die; says how each of them ended."""
    pool = _Pool()
    try:
        return pool.run(world, function, args, timeout, may_die=True)
    finally:
        pool.kill()


def _failures(outcomes: Sequence[Outcome]) -> str:
    """The errors of the processes that failed, as text."""
    return "\n".join(f"rank {rank}:\n{outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error)


class _Pool:
    """Processes that wait for functions; started when they are needed."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.workers: list[tuple[mp.process.BaseProcess, Connection]] = []
        self.calls = 0

    def run(
        self, world: int, function: Callable[..., Any], args: tuple[Any, ...], timeout: float, may_die: bool = False
    ) -> list[Outcome]:
        while len(self.workers) < world:
            self._start()
        self.calls += 1
        path = [*sys.path, str(Path(__file__).parent.parent)]  # test modules have the names that pytest gives them
        left = {connection: rank for rank, (_, connection) in enumerate(self.workers[:world])}
        for connection, rank in left.items():
            job = (f"call-{self.calls}", rank, world, timeout, function, args)
            connection.send_bytes(pickle.dumps((path, pickle.dumps(job))))
        outcomes = [Outcome()] * world
        deadline = time.monotonic() + timeout
        while left:
            ready = wait(list(left), max(0.0, deadline - time.monotonic()))
            if not ready:
                text = f"{function.__name__}: no answer from ranks {sorted(left.values())} within {timeout:g} s"
                raise ProcessesError(f"{text}\n{_failures(outcomes)}")
            for rank in [left.pop(connection) for connection in ready]:  # type: ignore[call-overload]
                outcomes[rank] = _answer(*self.workers[rank])
                if outcomes[rank].error is not None and not may_die:
                    deadline = min(deadline, time.monotonic() + 10.0)  # the others wait for nothing
        return outcomes

    def _start(self) -> None:
        here, there = mp.Pipe()
        process = _context.Process(target=_serve, args=(there, self.store.port))  # no daemon: it may have children
        process.start()
        there.close()
        if not here.poll(100.0):  # a busy machine takes its time to import torch
            raise ProcessesError("a process did not start within 100 s")
        here.recv_bytes()
        self.workers.append((process, here))

    def kill(self) -> None:
        for process, connection in self.workers:
            process.kill()
            connection.close()
        for process, _ in self.workers:
            process.join(10)
        self.workers = []


def _answer(process: mp.process.BaseProcess, connection: Connection) -> Outcome:
    try:
        return pickle.loads(connection.recv_bytes())  # type: ignore[no-any-return]
    except EOFError:
        process.join(5)
        return Outcome(error=f"the process ended with exit code {process.exitcode}", exitcode=process.exitcode)


_pool: _Pool | None = None


@atexit.register
def _close() -> None:
    if _pool is not None:
        _pool.kill()


# --- inside the processes ---
class Others:
    """How the processes of a call tell each other, whatever becomes of the network between them, that they are done."""

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store()

    def tell(self, rank: int) -> None:
        """This rank is done."""
        self._store.set(f"done/{rank}", "")

    def wait_for(self, *ranks: int) -> None:
        """Until those ranks are done: this process is silent for as long as others wait for it."""
        self._store.wait([f"done/{rank}" for rank in ranks], timedelta(seconds=150))


def error_of(call: Callable[..., object], *args: Any, **options: Any) -> tuple[str | None, float]:
    """The error of a call as text, None if there was none, and how many seconds it took."""
    start, error = time.monotonic(), None
    try:
        call(*args, **options)
    except MixwiseError as told:
        error = str(told)
    return error, time.monotonic() - start


def _serve(connection: Connection, port: int) -> None:
    """Do one job after the other; end when the process that gives them is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    connection.send_bytes(b"ready")
    while True:
        try:
            path, job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        sys.path[:] = path
        connection.send_bytes(pickle.dumps(_outcome(store, job)))


def _outcome(store: dist.Store, job: bytes) -> Outcome:
    try:
        name, rank, world, timeout, function, args = pickle.loads(job)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
        )
        outcome = Outcome(function(rank, world, *args))
        pickle.dumps(outcome)  # what cannot travel is an error of the function
    except BaseException:
        outcome = Outcome(error=traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return outcome


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
