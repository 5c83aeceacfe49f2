"""Runs suites and shows their results: in the terminal, as JSON, as Markdown."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill

import numpy as np

from . import SHORT, SUITES
from .measure import Benchmark, Result, environment, measured

OUT = Path("runs") / "bench.json"


def suite(name: str) -> Callable[..., Iterator[Benchmark]]:
    """The benchmarks of a suite: `benchmarks` of its module, or `large` for the slow ones."""
    module = importlib.import_module(f".{name.removesuffix('-large').replace('-', '_')}", __package__)
    return module.large if name.endswith("-large") else module.benchmarks


def run(names: Sequence[str], out: Path = OUT, show: Callable[[str], object] = print) -> list[Result]:
    """Run some suites, the short ones by default; show each result, and save it as JSON."""
    names = list(SUITES) if "all" in names else list(names or SHORT)
    if unknown := sorted(set(names) - set(SUITES)):
        raise ValueError(f"no suite is called {', '.join(unknown)}; choose from all, {', '.join(SUITES)}")
    surroundings = environment()  # before we add to the load ourselves
    record = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": f"mixwise bench {' '.join(names)}",
        "environment": surroundings,
        "suites": (suites := {name: [] for name in names}),
    }
    results: list[Result] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        show(f"{name}: {SUITES[name]}\n")
        for benchmark in suite(name)():
            results.append(result := measured(benchmark))
            suites[name].append(asdict(result))
            out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            show(in_words(result))
    met = [result.met for result in results if result.met is not None]
    show(f"{sum(met)} of {len(met)} bars met; all samples: {out}")
    load, cpus = surroundings["load"], surroundings["cpus"]
    if load is not None and load > cpus / 2:
        show(f"The load was {load:.1f} on {cpus} CPUs before the start: others shared the machine.")
    return results


# --- words ---
def rows(result: Result) -> Iterator[tuple[str, str, str]]:
    """For each contestant: its name, its median with the middle half, and its ratio to ours."""
    for name, samples in result.samples.items():
        mark = "limit: " if name == result.limit else ""
        ratio = "" if name == result.ours else spread(np.array(samples) / result.samples[result.ours], "×")
        yield mark + name, spread(samples, result.unit), ratio
    for name, hint in result.missing.items():
        yield name, "not here", hint


def verdict(result: Result) -> str:
    """The number that the bar is for, and whether it is met."""
    sign, unit = ("≥" if result.better == "higher" else "≤"), "×" if result.against else result.unit
    bar = f"bar {sign} {result.bar:g} {unit}"
    if (values := result.values) is None:
        return f"not measured ({bar})"
    return f"{spread(values, unit)}, {bar}: {'met' if result.met else 'MISSED'}"


def in_words(result: Result) -> str:
    """A result for a terminal of 80 columns."""
    lines = [f"{name:<32} {median:<22} {ratio}".rstrip() for name, median, ratio in rows(result)]
    return "\n  ".join([fill(result.question, 80), *lines, f"{verdict(result)}\n"])


def markdown(saved: Path) -> str:
    """The tables of docs/benchmarks.md: one per suite."""
    record = json.loads(saved.read_text("utf-8"))
    where = record["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines = [
        f"`{record['command']}`, {record['date'][:10]}, {where['processor']}, {where['cpus']} CPUs, load "
        f"{where['load']:.1f} before the start, Python {where['python']}, {versions}."
    ]
    for name, results in record["suites"].items():
        lines += ["", f"## {name}: {SUITES[name]}"]
        for result in (Result(**fields) for fields in results):
            clock = "wall time" if result.clock == "wall" else "CPU time"
            time = f", {clock}, {len(next(iter(result.samples.values()), []))} rounds" if result.unit == "s" else ""
            lines += ["", f"**{result.question}** {verdict(result)}{time}.", ""]
            lines += ["| contestant | median (middle half) | to the first |", "|---|---|---|"]
            lines += [f"| {' | '.join(row)} |" for row in rows(result)]
    return "\n".join(lines)


def spread(samples: Sequence[float] | np.ndarray, unit: str) -> str:
    """The median, and the middle half if there are several samples.

    >>> spread([0.0011, 0.0012, 0.0013, 0.0014, 0.0015], "s"), spread([80.0], "×")
    ('1.3 ms (1.2–1.4)', '80 ×')
    """
    low, median, high = np.percentile(samples, [25, 50, 75])
    scale, shown = 1.0, unit
    if unit == "s":
        scale, shown = (1.0, "s") if median >= 1 else (1e3, "ms") if median >= 1e-3 else (1e6, "µs")
    middle = f" ({digits(low * scale)}–{digits(high * scale)})" if len(samples) > 1 else ""
    return f"{digits(median * scale)} {shown}{middle}"


def digits(number: float) -> str:
    """Three significant digits, or two below 1, and at most three decimals.

    >>> digits(1234.5), digits(12.345), digits(0.0123), digits(0.00456)
    ('1,234', '12.3', '0.012', '0.005')
    """
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.{3 if number >= 1 else 2}g}" if number >= 0.01 else f"{round(number, 3):g}"
