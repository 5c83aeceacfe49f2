"""A supervisor that never stops surviving workers: it starts those of one machine and reports how they ended.

Workers find each other through a lighthouse, which the supervisor of machine 0 starts, and restarts if it is lost; the
supervisor of machine 1 may run a second one. Supervisors do not communicate: any of them may be lost and restarted.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import psutil

from mixwise.launch.command import Machines, written
from mixwise.network import lighthouse
from mixwise.network.addresses import free_address, gloo_interface
from mixwise.network.membership import GRACE, LIGHTHOUSES

_LOOK = 0.05  # seconds between two looks at the workers
_AGAIN = 1.0  # seconds until a lost process is started again
_PATIENCE = 10.0  # seconds from asking a process to end to ending it
_LAST_WORDS = 1.0  # seconds that output is awaited after the end; a process left behind may hold a pipe open
_FINISHED = "finished"
_PDEATHSIG = 1  # prctl: the signal to get when the parent dies
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: a fork beside other threads must not

Say = Callable[[str], None]


def supervise(machines: Machines, command: Sequence[str], grace: float, max_restarts: int, say: Say) -> int:
    """Run the workers of this machine to their end; return the exit code, 0 if survivors finished.

    Args:
        machines: where the processes run.
        command: of a worker, after the interpreter.
        grace: seconds that a process may be silent.
        max_restarts: how often processes of this machine are started again, to join the others.
        say: prints a line for the user.
    """
    lighthouse.torchft()  # raises an error if it is missing
    first, count, restarts = machines.here * machines.processes, machines.processes, 0
    with _interrupts() as interrupts, _Lighthouse(machines, grace) as light:
        environment = _environment(machines, light.addresses, grace)

        def start(local: int) -> Worker:
            own = {"RANK": str(first + local), "LOCAL_RANK": str(local)}
            return Worker(first + local, [sys.executable, *command], environment | own)

        workers = [start(local) for local in range(count)]
        ended: dict[int, str] = {}  # by local rank: how, unless it is to be started again
        due: dict[int, float] = {}  # when it is to be started again
        try:
            while not interrupts and len(ended) < count:
                light.keep(say)
                for local, worker in enumerate(workers):
                    how = worker.how_ended()
                    if local in ended or how is None:
                        continue
                    if local in due:
                        if time.monotonic() > due[local]:
                            del due[local]
                            workers[local] = start(local)
                    elif how != _FINISHED and restarts < max_restarts and _FINISHED not in ended.values():
                        restarts, due[local] = restarts + 1, time.monotonic() + _AGAIN
                        say(f"rank {worker.rank} is lost: {how}; start {restarts} of {max_restarts} to join again")
                    else:
                        ended[local] = how
                        if how != _FINISHED:
                            say(f"rank {worker.rank} is lost: {how}")
                if _FINISHED in ended.values():  # a stopped process would be waited for without end
                    for worker in workers:
                        if worker.is_stopped:
                            worker.end(reason="stopped, then ended")
                time.sleep(_LOOK)
        finally:
            _end(workers, interrupts[-1] if interrupts else signal.SIGTERM)
    if interrupts:
        say(f"stopped by {interrupts[-1].name}")
        return 128 + interrupts[-1]
    return _result(machines, {first + local: how for local, how in ended.items()}, say)


def _result(machines: Machines, ended: dict[int, str], say: Say) -> int:
    """Print a summary and return the exit code."""
    lost = {rank: how for rank, how in ended.items() if how != _FINISHED}
    finished = len(ended) - len(lost)
    where = "" if machines.most == 1 else f" of machine {machines.here}"
    listed = ", ".join(f"rank {rank} ({how})" for rank, how in sorted(lost.items()))
    say(f"{finished} of {len(ended)} processes{where} finished" + (f"; lost: {listed}" if lost else ""))
    codes = [int(how.removeprefix("exit code ")) for how in lost.values() if how.startswith("exit code ")]
    return 0 if finished else min(codes, default=1)


def _end(workers: Sequence[Worker], number: signal.Signals) -> None:
    """Ask all to end, and kill those that do not within 10 seconds."""
    last = time.monotonic() + _PATIENCE
    for worker in workers:
        worker.end(number)
    while any(worker.how_ended() is None for worker in workers) and time.monotonic() < last:
        time.sleep(_LOOK)
    for worker in workers:
        worker.end()
        worker.read_all()


class _Lighthouse:
    """The lighthouse of this machine, if it has one: a process that is started again when it is lost."""

    def __init__(self, machines: Machines, grace: float) -> None:
        places, self._grace = machines.lighthouses, grace
        self._process: subprocess.Popen[Any] | None = None
        if machines.here < len(places):
            self._at = places[machines.here] = free_address(*places[machines.here])
            self._process = self._start()
        self.addresses = ",".join(map(written, places))

    def _start(self) -> subprocess.Popen[Any]:
        host, port, self._started = *self._at, time.monotonic()
        command = [sys.executable, lighthouse.__file__, host, str(port), str(self._grace)]
        return _process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def keep(self, say: Say) -> None:
        """Start it again if it is lost."""
        if self._process is not None and self._process.poll() is not None and time.monotonic() > self._started + _AGAIN:
            say(f"the lighthouse is lost (exit code {self._process.returncode}), and started again")
            self._process = self._start()

    def __enter__(self) -> _Lighthouse:
        return self

    def __exit__(self, *args: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _environment(machines: Machines, lighthouses: str, grace: float) -> dict[str, str]:
    """The variables by which workers find each other."""
    return {
        "OMP_NUM_THREADS": "1",  # as under torchrun: processes share the cores
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a lost peer is reported once, by the library
        **gloo_interface(*machines.endpoint),
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": str(machines.most * machines.processes),
        "LOCAL_WORLD_SIZE": str(machines.processes),
        LIGHTHOUSES: lighthouses,
        GRACE: str(grace),
    }


@contextmanager
def _interrupts() -> Iterator[list[signal.Signals]]:
    """Collect the signals that are to end the run until the supervisor looks at them."""
    received: list[signal.Signals] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(signal.Signals(number)))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- one worker ---
class Worker:
    """One process of the run.

    Its output is passed on line by line, with its rank.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: dict[str, str]) -> None:
        self.rank = rank
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = _process(command, env=environment, encoding="utf-8", errors="surrogateescape", **pipes)
        self.reason: str | None = None  # why we ended it, if we did
        self._readers = [
            threading.Thread(target=_pass_on, args=(pipe, f"[{rank}] ", to.buffer), daemon=True)
            for pipe, to in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def how_ended(self) -> str | None:
        """How it ended, in words; None while it lives."""
        code = self.process.poll()
        if code is None:
            return None
        if self.reason is not None:
            return self.reason
        if code == 0:
            return _FINISHED
        return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.process.poll() is None and psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self, number: signal.Signals = signal.SIGKILL, reason: str | None = None) -> None:
        """Send a signal to the process and to all that it has started."""
        if self.process.poll() is None:
            self.reason = reason or self.reason
            os.killpg(self.process.pid, number)

    def read_all(self) -> None:
        """Wait for its end, and for the last of its output."""
        self.process.wait()
        for reader in self._readers:
            reader.join(_LAST_WORDS)


def _pass_on(source: IO[str], prefix: str, target: IO[bytes]) -> None:
    with source:
        for line in source:
            target.write((prefix + line.removesuffix("\n") + "\n").encode("utf-8", "surrogateescape"))
            target.flush()


def _process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a process group of its own, so that what it starts ends with it."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=die_with_parent, **options)


def die_with_parent() -> None:
    """In the child, before it becomes the worker: be killed when the parent is gone, however it went."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
