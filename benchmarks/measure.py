"""A benchmark is a question with contestants and a bar; all contestants take turns on the same inputs and threads.

A round gives every contestant one turn, so that all see the same machine. A turn lasts 0.2 s at least: short calls are
repeated. Ratios are taken round by round; reported are medians and the middle half of the rounds (25 % to 75 %).
"""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

SHORTEST, MOST = 0.2, 1000  # seconds of a turn; calls in it
PACKAGES = ("mixwise", "torch", "numpy", "scipy", "piqp", "clarabel", "osqp", "cvxpy", "decent-dp")


@dataclass(frozen=True)
class Contestant:
    """One way to do it: `call(i)` does it for input i.

    A time is divided by `per`, e.g. the number of nodes. With `own_clock`, the call returns the time itself, since the
    work was done by other processes.
    """

    call: Callable[[int], object]
    per: int = 1
    own_clock: bool = False


@dataclass(frozen=True)
class Missing:
    """A contestant that cannot run here, and the remedy."""

    hint: str


Contestants = Mapping[str, Contestant | Missing]


@dataclass(frozen=True)
class Benchmark:
    """A question, its contestants and its bar.

    Args:
        question: what the numbers answer.
        make: makes the contestants, by name. The first is ours.
        against: the contestant to compare with, or some, of which the fastest counts. Without any, the bar is for our
            own number.
        bar: what the number must reach, in `unit`, or as a ratio.
        better: "higher" for (theirs / ours), "lower" for (ours / theirs).
        limit: the contestant that does only the part that no implementation can avoid.
        rounds: turns of each contestant that count; one more warms up.
        unit: seconds are measured here; a number in any other unit is returned by the call.
        clock: "cpu" seconds of this process are hardly affected by others; "wall" where other processes take part.
    """

    question: str
    make: Callable[[], Contestants]
    bar: float
    against: str | tuple[str, ...] = ()
    better: Literal["higher", "lower"] = "higher"
    limit: str | None = None
    rounds: int = 7
    unit: str = "s"
    clock: Literal["cpu", "wall"] = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class Result:
    """The samples of all contestants, one per round, and what follows from them; JSON holds all of it."""

    question: str
    ours: str
    against: tuple[str, ...]
    limit: str | None
    better: str
    bar: float
    unit: str
    samples: dict[str, list[float]]
    missing: dict[str, str] = field(default_factory=dict)
    clock: str = "cpu"
    threads: int = 1

    def ratio(self, *others: str) -> np.ndarray:
        """Round by round, ours against the best of the others; above 1 is good if higher is better."""
        best = np.min([self.samples[name] for name in others], axis=0)
        return best / self.samples[self.ours] if self.better == "higher" else self.samples[self.ours] / best

    @property
    def values(self) -> np.ndarray | None:
        """What the bar is for, round by round; None without anyone to compare with."""
        present = [name for name in self.against if name in self.samples]
        if self.ours not in self.samples or (self.against and not present):
            return None
        return self.ratio(*present) if present else np.array(self.samples[self.ours])

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the bar; None if it was not measured."""
        if (values := self.values) is None:
            return None
        value = float(np.median(values))
        return value >= self.bar if self.better == "higher" else value <= self.bar


def measured(benchmark: Benchmark, rounds: int | None = None) -> Result:
    """Let the contestants take turns."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(benchmark.threads)
    try:
        with threadpool_limits(benchmark.threads):
            everyone = benchmark.make()
            present = {name: one for name, one in everyone.items() if isinstance(one, Contestant)}
            samples = _in_turns(present, benchmark, rounds or benchmark.rounds)
    finally:
        torch.set_num_threads(before)
    against = (benchmark.against,) if isinstance(benchmark.against, str) else benchmark.against
    return Result(
        benchmark.question, next(iter(everyone)), against, benchmark.limit, benchmark.better, benchmark.bar,
        benchmark.unit, samples, {name: one.hint for name, one in everyone.items() if isinstance(one, Missing)},
        benchmark.clock, benchmark.threads,
    )  # fmt: skip


def _in_turns(contestants: Mapping[str, Contestant], benchmark: Benchmark, rounds: int) -> dict[str, list[float]]:
    clock = time.process_time if benchmark.clock == "cpu" else time.perf_counter
    samples: dict[str, list[float]] = {name: [] for name in contestants}

    def turn(one: Contestant, i: int, calls: int) -> float:
        if one.own_clock or benchmark.unit != "s":
            return float(one.call(i))  # type: ignore[arg-type]
        start = clock()
        for c in range(calls):
            one.call(i + c)
        return (clock() - start) / calls

    calls = dict.fromkeys(contestants, 1)
    for name, one in contestants.items() if benchmark.unit == "s" else ():  # the first call loads and prepares
        turn(one, 0, 1)
        calls[name] = int(np.clip(SHORTEST / max(turn(one, 0, 1), 1e-9), 1, MOST))
    gc.collect()
    for i in range(rounds):
        for name, one in contestants.items():
            samples[name].append(turn(one, i, calls[name]) / one.per)
    return samples


# --- processes of their own ---
def in_a_process(
    module: str, *words: str, wrap: Callable[[list[str]], list[str]] = list, **variables: str
) -> subprocess.Popen[str]:
    """Start a module of this package, which a wheel holds as `mixwise.benchmarks`, on one thread.

    `wrap` may change the command, to run it elsewhere.
    """
    package = __package__ or "benchmarks"
    root = str(Path(__file__).parents[package.count(".") + 1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | variables
    command = wrap([sys.executable, "-m", f"{package}.{module}", *words])
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def last_line(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """Its last line of output, once it has ended."""
    try:
        printed, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, process.args))} ended with {process.returncode}")  # type: ignore[arg-type]
    return printed.rpartition("\n")[0].rpartition("\n")[2]


def memory(what: Literal["VmRSS", "VmHWM"]) -> int:
    """Bytes that this process holds, or held at its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def linux_only(contestant: Contestant) -> Contestant | Missing:
    """The contestant, where /proc tells the memory of a process."""
    return contestant if Path("/proc/self/clear_refs").exists() else Missing("needs Linux")


# --- what the numbers depend on ---
def environment() -> dict[str, Any]:
    """The machine, its load, and versions."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
