"""A supervisor that never ends survivors: it starts the workers of one machine, and reports how they ended.

Workers find each other by a lighthouse, which the supervisor of machine 0 starts, and starts again if it is lost; that
of machine 1 may keep another one. Supervisors do not talk to each other: any may be lost and started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from mixwise.launch.command import Machines, written
from mixwise.launch.workers import FINISHED, Worker, die_with_parent
from mixwise.network import lighthouse
from mixwise.network.addresses import free_address, gloo_interface
from mixwise.network.membership import GRACE, LIGHTHOUSES

_LOOK = 0.05  # seconds between two looks at the workers
_AGAIN = 1.0  # seconds until a lost process is started again
_PATIENCE = 10.0  # seconds from asking a process to end to ending it

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
            while not interrupts.last and len(ended) < count:
                light.keep(say)
                for local, worker in enumerate(workers):
                    how = worker.how_ended()
                    if local in ended or how is None:
                        continue
                    if local in due:
                        if time.monotonic() > due[local]:
                            del due[local]
                            workers[local] = start(local)
                    elif how != FINISHED and restarts < max_restarts and FINISHED not in ended.values():
                        restarts, due[local] = restarts + 1, time.monotonic() + _AGAIN
                        say(f"rank {worker.rank} is lost: {how}; start {restarts} of {max_restarts} to join again")
                    else:
                        ended[local] = how
                        if how != FINISHED:
                            say(f"rank {worker.rank} is lost: {how}")
                if FINISHED in ended.values():  # a stopped process would be waited for without end
                    for worker in workers:
                        if worker.is_stopped:
                            worker.end(reason="stopped, then ended")
                time.sleep(_LOOK)
        finally:
            _end(workers, interrupts.last or signal.SIGTERM)
    if interrupts.last:
        say(f"stopped by {interrupts.last.name}")
        return 128 + interrupts.last
    return _result(machines, {first + local: how for local, how in ended.items()}, say)


def _result(machines: Machines, ended: dict[int, str], say: Say) -> int:
    """Print a summary and return the exit code."""
    lost = {rank: how for rank, how in ended.items() if how != FINISHED}
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
        self._process: subprocess.Popen[bytes] | None = None
        if machines.here < len(places):
            self._at = places[machines.here] = free_address(*places[machines.here])
            self._process = self._start()
        self.addresses = ",".join(map(written, places))

    def _start(self) -> subprocess.Popen[bytes]:
        host, port, self._started = *self._at, time.monotonic()
        return subprocess.Popen(
            [sys.executable, lighthouse.__file__, host, str(port), str(self._grace)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
            preexec_fn=die_with_parent,
        )  # fmt: skip

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


class _Interrupts:
    last: signal.Signals | None = None  # the signal that is to end the run


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Remember signals that end the run until the supervisor looks at them."""
    found = _Interrupts()

    def remember(number: int, frame: FrameType | None) -> None:
        found.last = signal.Signals(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
