"""A supervisor that never ends survivors: it starts the workers of one machine, and reports how they ended.

The supervisor of machine 0 also hosts the board, and decides which ranks form the next generation after a loss.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

from mixwise.errors import ConfigError, NetworkError
from mixwise.launch.command import Machines
from mixwise.launch.interface import gloo_interface
from mixwise.launch.workers import FINISHED, Workers
from mixwise.network.board import Board, listening_store, until
from mixwise.network.membership import END, GRACE, SUPERVISED, Generation

_ARRIVAL = 300.0  # seconds within which all machines must have been started
_LOOK, _BEAT = 0.1, 1.0  # seconds between two looks at the board, and between two signs of life

Say = Callable[[str], None]


def supervise(machines: Machines, command: Sequence[str], grace: float, say: Say) -> int:
    """Run the workers of this machine to their end; return the exit code, 0 if survivors finished.

    Args:
        machines: where the processes run.
        command: of a worker, after the interpreter.
        grace: seconds that a process may be silent while the others form a new group.
        say: prints a line for the user.
    """
    with _interrupts() as interrupts:
        board, address = _board(machines)
        _gather_machines(board, machines, interrupts)
        if interrupts.last:
            return 128 + interrupts.last
        first = machines.here * machines.processes
        workers = Workers(
            range(first, first + machines.processes), [sys.executable, *command], _environment(machines, address, grace)
        )
        watch = _Watch(board, machines, workers, grace, say)
        try:
            while not interrupts.last and not watch.done():
                watch.look(time.monotonic())
                time.sleep(_LOOK)
        finally:
            workers.end(interrupts.last or signal.SIGTERM)
        watch.report_ended()
        if interrupts.last:
            say(f"stopped by {interrupts.last.name}")
            return 128 + interrupts.last
        return watch.result()


class _Watch:
    """Reports and watches while the workers run."""

    def __init__(self, board: Board, machines: Machines, workers: Workers, grace: float, say: Say) -> None:
        self.board, self.machines, self.workers, self.grace, self.say = board, machines, workers, grace, say
        self.world = machines.most * machines.processes
        self.generations = Generations(board, self.world, grace) if machines.here == 0 else None
        self._told: dict[int, str] = {}  # ranks of this machine that have ended, as reported on the board
        self._beaten = -_BEAT
        self._beats: dict[int, tuple[int, float]] = {}  # of other machines: how many, and since when no more

    def look(self, now: float) -> None:
        """Report processes that have ended, end those that others ask to end; on machine 0, publish generations."""
        self.report_ended()
        for worker in self.workers.living:
            reason = self.board.read(f"end/{worker.rank}")
            if reason is not None:
                worker.end(reason=reason)
        if now - self._beaten >= _BEAT and self.workers.living:
            self._beaten = now
            self.board.count(f"beat/{self.machines.here}", 1)
        if self.generations is not None:
            self._look_at_machines(now)
            generation = self.generations.look(now)
            if generation is not None:
                members = ", ".join(map(str, generation.members))
                without = f" without {_list(generation.lost)}" if generation.lost else ""
                self.say(f"generation {generation.number}: ranks {members} continue{without}")

    def report_ended(self) -> None:
        """Report processes that have ended since the last time."""
        for rank, how in self.workers.ended().items():
            if rank not in self._told:
                self._told[rank] = how
                self.board.write(f"ended/{rank}", how)
                if how != FINISHED:
                    self.say(f"rank {rank} is lost: {how}")

    def done(self) -> bool:
        """Whether all workers have ended: those of this machine; on machine 0, which hosts the board, all."""
        if len(self._told) < self.machines.processes:
            return False
        return self.generations is None or len(self.generations.ended()) == self.world

    def result(self) -> int:
        """Print a summary and return the exit code."""
        ended = self._told if self.generations is None else self.generations.ended()
        lost = {rank: how for rank, how in ended.items() if how != FINISHED}
        finished = len(ended) - len(lost)
        where = "" if self.generations is not None else f" of machine {self.machines.here}"
        self.say(f"{finished} of {len(ended)} processes{where} finished" + (f"; lost: {_list(lost)}" if lost else ""))
        if finished:
            return 0
        codes = [int(how.removeprefix("exit code ")) for how in lost.values() if how.startswith("exit code ")]
        return min(codes, default=1)

    def _look_at_machines(self, now: float) -> None:
        """Count the processes of a machine that is silent for the grace period as lost."""
        for machine in range(1, self.machines.most):
            first = machine * self.machines.processes
            ranks = range(first, first + self.machines.processes)
            beats, since = self._beats.get(machine, (-1, now))
            count = self.board.count(f"beat/{machine}")
            self._beats[machine] = (count, since if count == beats else now)
            if count != beats or now - since < self.grace or self.board.has(*(f"ended/{rank}" for rank in ranks)):
                continue
            for rank in ranks:
                if not self.board.has(f"ended/{rank}"):
                    self.board.write(f"end/{rank}", "taken for lost by machine 0")  # should it come back
                    self.board.write(f"ended/{rank}", f"machine {machine} silent for {self.grace:g} s")
                    self.say(f"rank {rank} is lost: machine {machine} silent for {self.grace:g} s")


def _list(lost: dict[int, str]) -> str:
    return ", ".join(f"rank {rank} ({how})" for rank, how in sorted(lost.items()))


def _board(machines: Machines) -> tuple[Board, tuple[str, int]]:
    """The board, hosted here if this is machine 0, and its address."""
    host, port = machines.endpoint
    if machines.here > 0:
        return Board.at(host, port, _ARRIVAL), (host, port)
    store = listening_store(host, port)
    port = store.port
    return Board(store, f"the board at {host}:{port}"), (host, port)


def _gather_machines(board: Board, machines: Machines, interrupts: _Interrupts) -> None:
    """Wait until all machines have started; each must run the same number of processes."""
    if machines.most == 1:
        return
    board.write(f"machine/{machines.here}", machines.processes)
    names = [f"machine/{machine}" for machine in range(machines.most)]
    awaited = names if machines.here == 0 else ["start"]
    if not until(lambda: interrupts.last or board.has(*awaited), _ARRIVAL):
        missing = [name.replace("/", " ") for name in names if not board.has(name)]
        raise NetworkError(
            f"{', '.join(missing)} did not come within {_ARRIVAL:g} s; start mixwise launch there with the same "
            f"--master, and check that its port is open on machine 0"
        )
    if interrupts.last:
        return
    board.write("start", True)
    for machine, name in enumerate(names):
        processes = board.read(name)
        if processes != machines.processes:
            here = f"machine {machines.here} {machines.processes}; give the same --nproc-per-node"
            raise ConfigError(f"machine {machine} starts {processes} processes, {here}")


def _environment(machines: Machines, address: tuple[str, int], grace: float) -> dict[str, str]:
    """The variables by which workers find each other in init_process_group("gloo")."""
    return {
        "OMP_NUM_THREADS": "1",  # as under torchrun: processes share the cores
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a lost peer is reported once, by the library
        **gloo_interface(machines.endpoint),
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": str(machines.most * machines.processes),
        "LOCAL_WORLD_SIZE": str(machines.processes),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours, rank 0 need not host one
        SUPERVISED: "1",
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


class Generations:
    """Decides which ranks belong to the next generation, on machine 0 alone, from the notes on the board.

    report/g/r      rank r has left generation g, having come this far
    ended/r         the process of rank r has ended, and how; "finished" if it was done
    end/r           the supervisor of rank r is to end its process, and why
    generation/g    its members


    Args:
        board: the board.
        world: how many ranks there are at the start.
        grace: seconds from the first report to the last; a process that is silent for longer is ended.
    """

    def __init__(self, board: Board, world: int, grace: float) -> None:
        self.board, self.world, self.grace = board, world, grace
        self.current = Generation(0, tuple(range(world)))
        self._first_report: float | None = None  # when, in this generation
        self._events = 0  # reports seen so far

    def look(self, now: float) -> Generation | None:
        """Read the board; return the next generation if it was published now."""
        events = self.board.count("events")
        if events == self._events and self._first_report is None:
            return None
        self._events = events
        notes = {rank: self.board.read(f"report/{self.current.number}/{rank}") for rank in self.current.members}
        reached = {rank: tuple(at) for rank, at in notes.items() if at is not None}
        if not reached:
            return None
        if self._first_report is None:
            self._first_report = now
        ended = self.ended()
        silent = [rank for rank in self.current.members if rank not in reached and rank not in ended]
        waited = now - self._first_report
        if silent and waited < self.grace:
            return None
        for rank in silent:
            self.board.write(f"end/{rank}", f"silent for {self.grace:g} s, then ended")
        if silent and waited < self.grace + END:  # a process whose machine is gone is never seen to end
            return None
        for rank in silent:
            self.board.write(f"ended/{rank}", "silent, and so is its machine")
        members = tuple(rank for rank in self.current.members if rank in reached and rank not in ended)
        if not members:
            return None
        lost = {rank: how for rank, how in self.ended().items() if how != FINISHED}
        at = max(reached[rank] for rank in members)
        self.current = Generation(self.current.number + 1, members, at, lost)
        self._first_report = None
        self.board.write(f"generation/{self.current.number}", asdict(self.current))
        return self.current

    def ended(self) -> dict[int, str]:
        """The ranks whose process has ended, and how."""
        notes = {rank: self.board.read(f"ended/{rank}") for rank in range(self.world)}
        return {rank: how for rank, how in notes.items() if how is not None}
