"""`python -m benchmarks [suite …]`: a table, and the same numbers in benchmarks/results/latest.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import distributed, gme, images, large, report, run_memory, sketch, slow_link, startup, training
from benchmarks.measure import Measurement, environment

SUITES = {
    "gme": gme.measurements,
    "sketch": sketch.measurements,
    "training": training.measurements,
    "memory": run_memory.measurements,
    "images": images.measurements,
    "distributed": distributed.measurements,
    "slow-link": slow_link.measurements,
    "report": report.measurements,
    "large": large.measurements,
    "startup": startup.measurements,
}
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed, precision and memory.")
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"{' or '.join(SUITES)}; all by default")
    asked = parser.parse_args().suites
    if unknown := set(asked) - set(SUITES):
        parser.error(f"no suite called {', '.join(sorted(unknown))}; choose from {', '.join(SUITES)}")

    console = Console(width=None if sys.stdout.isatty() else 140)  # a pipe has no width of its own
    start = time.perf_counter()
    surroundings = environment()  # before we add to the load ourselves
    taken: list[Measurement] = []
    with console.status("measuring …") as status:
        for name in asked or SUITES:
            for measurement in SUITES[name]():
                taken.append(measurement)
                status.update(f"measuring … ({measurement.name} done)")
    console.print(table(taken))
    missed = sum(m.met is False for m in taken)
    seconds = time.perf_counter() - start
    console.print(f"{missed} of {len(taken)} bars missed" if missed else "all bars met that were measured", end="; ")
    console.print(f"{seconds:.0f} s in all")
    if (surroundings["load"] or 0) > surroundings["cpus"] / 2:
        console.print(
            f"The load was {surroundings['load']:.1f} on {surroundings['cpus']} CPUs before the start: "
            f"others share the machine, which slows code on several threads the most."
        )

    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "environment": surroundings,
        "measurements": [m.record() for m in taken],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"written: {RESULTS.relative_to(RESULTS.parents[2])}")


def table(taken: list[Measurement]) -> Table:
    """What was measured, and whether it is good enough."""
    result = Table()
    for heading in ("what", "mixwise", "the other", "result", "bar", ""):
        result.add_column(heading, justify="right" if heading in ("mixwise", "result", "bar") else "left")
    words = {True: "met", False: "[bold red]missed[/]", None: "not measured"}
    for m in taken:
        value = "–" if m.value is None else f"{m.value:,.3g} {m.unit}" if m.value < 100 else f"{m.value:,.0f} {m.unit}"
        sign = "≥" if m.better == "higher" else "≤"
        result.add_row(m.name, m.ours, m.theirs, value, f"{sign} {m.bar:g} {m.unit}", words[m.met])
    return result


if __name__ == "__main__":
    main()
