"""One measurement with its bar, and how measurements are taken: in turns, and memory in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from statistics import median
from typing import Any, Literal, TypeVar

Input = TypeVar("Input")


@dataclass(frozen=True)
class Measurement:
    """A number, what it was to be, and the numbers it was made from."""

    name: str
    value: float | None  # None: could not be measured here
    unit: str  # "×" for a ratio
    bar: float
    better: Literal["higher", "lower"]
    ours: str = ""  # for the table
    theirs: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None if nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self) | {"met": self.met}


def in_turns(
    rounds: Sequence[Sequence[Input]], contenders: Mapping[str, tuple[Callable[[Input], object], int]]
) -> dict[str, list[list[float]]]:
    """Seconds per call, by contender and round. Each round gives everybody a turn, so that all see the same machine.

    Args:
        rounds: the inputs of each round.
        contenders: name -> (what to call, on how many of a round's inputs; the slow ones take fewer).
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for inputs in rounds:
        for name, (call, count) in contenders.items():
            seconds[name].append([_timed(call, one) for one in inputs[:count]])
    return seconds


def medians(seconds: Mapping[str, list[list[float]]]) -> dict[str, float]:
    """The median call of each contender."""
    return {name: median(one for turn in turns for one in turn) for name, turns in seconds.items()}


def fastest(turns: list[list[float]]) -> float:
    """The fastest call of one contender."""
    return min(one for turn in turns for one in turn)


def speedup(slow: list[list[float]], fast: list[list[float]]) -> float:
    """How much faster: the median over the rounds of (slow's median call / fast's median call in that round)."""
    return median(median(a) / median(b) for a, b in zip(slow, fast, strict=True))


def _timed(call: Callable[[Input], object], one: Input) -> float:
    start = time.perf_counter()
    call(one)
    return time.perf_counter() - start


def extra_memory(setup: str, call: str) -> float | None:
    """MB that `call` adds, at its peak, to what the process held after `setup`; None where /proc does not tell."""
    if sys.platform != "linux":
        return None
    code = textwrap.dedent("""
        def kilobytes(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
        {setup}
        before = kilobytes("VmRSS")
        {call}
        print((kilobytes("VmHWM") - before) * 1024 / 1e6)
    """).format(setup=setup, call=call)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def environment() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    packages = ("mixwise", "numpy", "scipy", "torch", "piqp", "cvxpy", "clarabel", "osqp")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": load(),
        "versions": {name: version(name) for name in packages},
    }


def load() -> float | None:
    """How many processes wanted to run, on average over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def in_words(seconds: float) -> str:
    """A time with a readable unit.

    >>> in_words(0.000123), in_words(0.0456), in_words(7.8)
    ('0.123 ms', '45.6 ms', '7.8 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
