"""The result table: each metric averaged over the last window of a run, then mean and deviation over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixwise.report.results import Results, higher_is_better, last_records, series, steps_in_words


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and standard deviation of the sample; no deviation for a single seed."""

    mean: float
    std: float | None

    def __str__(self) -> str:
        """Three digits of the mean, and the deviation to the same place: 446 ± 197, (2.16 ± 2.04)e-3."""
        size = math.floor(math.log10(abs(self.mean))) if self.mean and math.isfinite(self.mean) else 0
        unit, places = (1.0, max(0, 2 - size)) if -2 <= size <= 5 else (10.0**size, 2)
        text = f"{self.mean / unit:.{places}f}" + ("" if self.std is None else f" ± {self.std / unit:.{places}f}")
        if unit == 1.0:
            return text
        return f"{text}e{size}" if self.std is None else f"({text})e{size}"


@dataclass(frozen=True)
class Summary:
    """One row per variant, one cell per metric."""

    metrics: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]
    steps: str  # that the numbers come from, in words
    seeds: tuple[int, ...]

    def best(self, column: int) -> float:
        """The best mean of a column."""
        choose = max if higher_is_better(self.metrics[column]) else min
        return choose(cells[column].mean for cells in self.rows.values())

    def to_csv(self) -> str:
        """`variant`, then `<metric>_mean` and `<metric>_std` for each metric."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        several = any("/" in run for run in self.rows)  # topologies
        names = ["topology", "variant"] if several else ["variant"]
        writer.writerow([*names, *(f"{metric}_{part}" for metric in self.metrics for part in ("mean", "std"))])
        for run, cells in self.rows.items():
            numbers = [value for cell in cells for value in (cell.mean, cell.std)]
            name = list(run.rpartition("/")[::2]) if several else [run]
            writer.writerow([*name, *("" if value is None else repr(value) for value in numbers)])
        return text.getvalue()

    def to_markdown(self, title: str) -> str:
        """The same as a table to read, the best of each column in bold."""
        lines = [
            f"# {title}",
            "",
            f"{self.caption}; the best of each column in bold.",
            "",
            "| variant | " + " | ".join(metric.replace("_", " ") for metric in self.metrics) + " |",
            "|---|" + "---|" * len(self.metrics),
        ]
        for variant, cells in self.rows.items():
            shown = [f"**{cell}**" if cell.mean == self.best(i) else str(cell) for i, cell in enumerate(cells)]
            lines.append(f"| {variant} | " + " | ".join(shown) + " |")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        from mixwise.report.notebook import html_table  # few need it

        head = ["variant", *(metric.replace("_", " ") for metric in self.metrics)]
        rows = [[variant, *map(str, cells)] for variant, cells in self.rows.items()]
        best = [[False, *(c.mean == self.best(i) for i, c in enumerate(cells))] for cells in self.rows.values()]
        return html_table(head, rows, best, f"{self.caption}; the best of each column in bold")

    @property
    def caption(self) -> str:
        """What the numbers are."""
        over = f"seed {self.seeds[0]}"
        if len(self.seeds) > 1:
            over = f"mean ± standard deviation over {len(self.seeds)} seeds ({', '.join(map(str, self.seeds))})"
        return f"{self.steps[0].upper()}{self.steps[1:]}; {over}"


def summarize(results: Results, metrics: Sequence[str], window: int) -> Summary:
    """The table of an experiment."""
    rows = {}
    used: dict[str, list[list[int]]] = {metric: [] for metric in metrics}
    for variant, runs in results.items():
        cells = []
        for metric in metrics:
            lasts = [last_records(records, metric, window) or records for records in runs.values()]
            finals = np.array([series(last, metric).mean() for last in lasts])
            cells.append(Cell(float(finals.mean()), float(finals.std(ddof=1)) if len(finals) > 1 else None))
            used[metric] += [[record["step"] for record in last] for last in lasts]
        rows[variant] = tuple(cells)
    seeds = tuple(next(iter(results.values())))
    return Summary(tuple(metrics), rows, steps_in_words(used), seeds)
