"""A supervisor that never ends survivors: it starts the workers of one machine, and tells the others how they ended.

The supervisor of machine 0 also hosts the board, and decides who belongs to the next generation after a loss.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType

from mixwise.errors import ConfigError, NetworkError
from mixwise.launch.command import Machines
from mixwise.launch.generations import FINISHED, Generations
from mixwise.launch.interface import gloo_interface
from mixwise.launch.workers import Workers
from mixwise.network.board import Board, listening_store
from mixwise.network.membership import GRACE, SUPERVISED, Generation

_ARRIVAL = 300.0  # seconds within which all machines must have been started
_LOOK, _BEAT = 0.1, 1.0  # seconds between two looks at the board, and between two signs of life

Say = Callable[[str], None]


def supervise(machines: Machines, command: Sequence[str], grace: float, say: Say) -> int:
    """Run the workers of this machine to their end; the exit code, 0 if survivors finished.

    Args:
        machines: where the processes run.
        command: what a worker runs, after the interpreter.
        grace: seconds that a process may be silent while the others form a new group.
        say: tells the user.
    """
    with _Interrupts() as interrupts:
        board, address = _board(machines)
        _gather_machines(board, machines, interrupts)
        if interrupts.last:
            return 128 + interrupts.last
        first = machines.here * machines.processes
        workers = Workers(
            range(first, first + machines.processes),
            [sys.executable, *command],
            _environment(machines, address, grace),
        )
        watch = _Watch(board, machines, workers, grace, say)
        try:
            while not interrupts.last and not watch.done():
                workers.forward(_LOOK / 2)
                watch.look(time.monotonic())
        finally:
            workers.end(interrupts.last or signal.SIGTERM)
        watch.report_ended()
        if interrupts.last:
            say(f"stopped by {interrupts.last.name}")
            return 128 + interrupts.last
        return watch.result()


class _Watch:
    """What a supervisor looks after while its workers run."""

    def __init__(self, board: Board, machines: Machines, workers: Workers, grace: float, say: Say) -> None:
        self.board, self.machines, self.workers, self.grace, self.say = board, machines, workers, grace, say
        self.world = machines.most * machines.processes
        self.generations = Generations(board, self.world, grace) if machines.here == 0 else None
        self._told: dict[int, str] = {}  # who has ended, of those that the board knows from us
        self._looked = self._beaten = -_BEAT
        self._beats: dict[int, tuple[int, float]] = {}  # of other machines: how many, and since when no more

    def look(self, now: float) -> None:
        """Tell who has ended, end whom we are asked to end; on machine 0, see to the next generation."""
        if now - self._looked < _LOOK:
            return
        self._looked = now
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
                self.say(_description(generation))

    def report_ended(self) -> None:
        """Tell the others of those who have ended since the last time."""
        for rank, how in self.workers.ended().items():
            if rank not in self._told:
                self._told[rank] = how
                self.board.write(f"ended/{rank}", how)
                if how != FINISHED:
                    self.say(f"rank {rank} is lost: {how}")

    def done(self) -> bool:
        """Whether all have ended: the workers of this machine; for machine 0, which hosts the board, those of all."""
        if len(self._told) < self.machines.processes:
            return False
        return self.generations is None or len(self.generations.ended()) == self.world

    def result(self) -> int:
        """The exit code, after a last word."""
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
        """A machine that gives no sign of life for the grace period has lost all its processes."""
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


def _description(generation: Generation) -> str:
    members = ", ".join(map(str, generation.members))
    without = f" without {_list(generation.lost)}" if generation.lost else ""
    return f"generation {generation.number}: ranks {members} go on{without}"


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
    """Wait until all machines are there; all must start as many processes."""
    if machines.most == 1:
        return
    board.write(f"machine/{machines.here}", machines.processes)
    names = [f"machine/{machine}" for machine in range(machines.most)]
    last = time.monotonic() + _ARRIVAL
    awaited = names if machines.here == 0 else ["start"]
    while not interrupts.last and not board.has(*awaited):
        if time.monotonic() > last:
            missing = [name.replace("/", " ") for name in names if not board.has(name)]
            raise NetworkError(
                f"{', '.join(missing)} did not come within {_ARRIVAL:g} s; start mixwise launch there with the same "
                f"--master, and see that its port is open on machine 0"
            )
        time.sleep(_LOOK)
    if interrupts.last:
        return
    board.write("start", True)
    for machine, name in enumerate(names):
        processes = board.read(name)
        if processes != machines.processes:
            raise ConfigError(
                f"machine {machine} starts {processes} processes, machine {machines.here} {machines.processes}; "
                f"give the same --nproc-per-node on all machines"
            )


def _environment(machines: Machines, address: tuple[str, int], grace: float) -> dict[str, str]:
    """What the workers need to find each other: init_process_group("gloo") does the rest."""
    return {
        "OMP_NUM_THREADS": "1",  # as under torchrun: processes share the cores
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a lost peer is told in our words, once
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
    """Signals that end the run, remembered until somebody looks."""

    _numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.last: signal.Signals | None = None

    def __enter__(self) -> _Interrupts:
        self._before = {number: signal.signal(number, self._remember) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.last = signal.Signals(number)
