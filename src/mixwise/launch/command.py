"""Command lines: of a worker, and of torchrun or `mixwise launch` on each machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mixwise.errors import ConfigError

_OURS = ("run", "sweep", "doctor")  # our own commands that make sense in several processes


@dataclass(frozen=True)
class Machines:
    """Where the processes run.

    Attributes:
        count: how many machines, such as "2", or "1:3" for at least one and at most three (torchrun's elastic runs).
        here: the number of this machine, from 0.
        processes: on each machine.
        master: address and port of machine 0, as the others see it; not needed on one machine.
        standby: those of machine 1, if it takes over the lighthouse when machine 0 is lost.
    """

    processes: int
    count: str = "1"
    here: int = 0
    master: tuple[str, int] | None = None
    standby: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigError(f"--nproc-per-node {self.processes}: a machine runs at least 1 process")
        if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", self.count) or self.fewest > self.most:
            raise ConfigError(f"--machines {self.count}: a number such as 2, or a range such as 1:3")
        if not 0 <= self.here < self.most:
            raise ConfigError(f"--machine {self.here}: the machines are 0 to {self.most - 1}")
        if self.most > 1 and self.master is None:
            raise ConfigError("several machines need --master ADDRESS:PORT, where the others reach machine 0")
        if self.standby is not None and self.most < 3:
            raise ConfigError("--standby: only a majority continues without machine 0, so it takes 3 machines or more")

    @property
    def fewest(self) -> int:
        """How many machines there are at least."""
        return int(self.count.partition(":")[0])

    @property
    def most(self) -> int:
        """How many machines there are at most."""
        return int(self.count.rpartition(":")[2])

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where machine 0 listens; on one machine a free port that no other machine reaches."""
        return self.master if self.master is not None and self.most > 1 else ("127.0.0.1", 0)

    @property
    def lighthouses(self) -> list[tuple[str, int]]:
        """Where processes ask which ones are present: at machine 0, then at machine 1, if it stands by."""
        return [self.endpoint, *([] if self.standby is None else [self.standby])]


def parse_master(text: str | None) -> tuple[str, int] | None:
    """Address and port, such as 10.0.0.1:29500, or [fd00::1]:29500."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--master {text}: an address and a port from 1 to 65535, such as 10.0.0.1:29500")
    return host, int(port)


def check_options(machines: Machines, worker: Sequence[str], stops: bool, max_restarts: int, grace: float) -> None:
    """Raise an error if options do not go together."""
    if max_restarts < 0:
        raise ConfigError(f"--max-restarts {max_restarts}: at least 0")
    if not stops and worker[:2] == ["-m", "mixwise"]:
        raise ConfigError(
            "--on-loss continue is for scripts with Gossip(elastic=True); a recipe that loses a process is resumed, "
            "also with fewer: --on-loss stop, with --max-restarts or --resume"
        )
    if not grace > 0:
        raise ConfigError(f"--grace {grace:g}: a process may be silent for some seconds, so above 0")
    if not stops and machines.fewest < machines.most:
        raise ConfigError(f"--machines {machines.count}: with --on-loss continue, give the number at the start")


def worker_command(words: Sequence[str]) -> list[str]:
    """The command of a worker, without the interpreter: a command of mixwise, a script, or a module.

    >>> worker_command(["run", "digits"])
    ['-m', 'mixwise', 'run', 'digits']
    >>> worker_command(["train.py", "--lr", "0.1"])
    ['train.py', '--lr', '0.1']
    """
    if not words:
        raise ConfigError("nothing to launch; add it after --, such as -- run digits, or -- train.py --lr 0.1")
    first = words[0]
    if first in _OURS:
        return ["-m", "mixwise", *words]
    if first == "mixwise" and len(words) > 1:
        return worker_command(words[1:])
    if first.endswith(".py") or (first == "-m" and len(words) > 1):
        return list(words)
    raise ConfigError(f"cannot launch {first}; it is {', '.join(_OURS)} of mixwise, a script such as train.py, or -m")


def torchrun_line(machines: Machines, command: Sequence[str], max_restarts: int = 0) -> list[str]:
    """The torchrun command line of one machine, for runs that stop, or restart, when a process is lost."""
    line = ["python", "-m", "mixwise.launch.torchrun", f"--nproc-per-node={machines.processes}"]
    line += [f"--nnodes={machines.count}", "--rdzv-backend=mixwise", f"--rdzv-endpoint={written(machines.endpoint)}"]
    if machines.most > 1 and (max_restarts > 0 or machines.fewest < machines.most):  # they restart together
        line += ["--rdzv-id=mixwise", f"--rdzv-conf=is_host={str(machines.here == 0).lower()}"]
    else:
        line.append(f"--rdzv-conf=rank={machines.here}")
    if max_restarts:
        line.append(f"--max-restarts={max_restarts}")
    return [*line, *command]


def launch_line(machines: Machines, grace: float, max_restarts: int, words: Sequence[str]) -> list[str]:
    """The command line of one machine for runs that continue without lost processes."""
    line = ["mixwise", "launch", "--on-loss=continue", f"--nproc-per-node={machines.processes}", f"--grace={grace:g}"]
    if max_restarts:
        line.append(f"--max-restarts={max_restarts}")
    if machines.master is not None:
        line += [f"--machines={machines.count}", f"--machine={machines.here}", f"--master={written(machines.master)}"]
    if machines.standby is not None:
        line.append(f"--standby={written(machines.standby)}")
    return [*line, "--", *words]


def written(endpoint: tuple[str, int]) -> str:
    """Address and port as text.

    >>> written(("fd00::1", 29500))
    '[fd00::1]:29500'
    """
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def python_line(line: Sequence[str]) -> list[str]:
    """A line that begins with python, as a command of this interpreter."""
    return [sys.executable, *line[1:]]
