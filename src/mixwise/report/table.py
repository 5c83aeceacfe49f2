"""The result table: each metric averaged over the last window of a run, then mean and standard deviation over seeds.

A `Summary` is the table of a finished experiment. `Standings` are the table of a folder in any state: they rank its
variants, with the bytes that each has sent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from mixwise.report.folder import Run, RunFolder
from mixwise.report.records import Results, Steps, higher_is_better, is_number, last_records, series, steps_in_words

_NOT_GOSSIP = ("full-averaging", "all-reduce", "local-sgd")  # every node hears all others: bounds for gossip


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and sample standard deviation; no deviation for a single seed."""

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

    def text(self, percent: bool) -> str:
        """The cell as a page shows it: 42.4 ± 3.1 % for a share, otherwise as `str` does."""
        if not percent:
            return str(self)
        return f"{100 * self.mean:.1f}" + ("" if self.std is None else f" ± {100 * self.std:.1f}") + " %"


@dataclass(frozen=True)
class Summary:
    """One row per variant, one cell per metric; in a notebook, a table."""

    metrics: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]
    steps: str  # the steps that the numbers come from, in words
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
        """The table in Markdown, the best of each column in bold."""
        lines = [f"# {title}", "", f"{self.caption}; the best of each column in bold.", ""]
        lines += [f"| {' | '.join(self._head)} |", "|" + "---|" * len(self._head)]
        for variant, cells in self.rows.items():
            shown = [f"**{cell}**" if cell.mean == self.best(i) else str(cell) for i, cell in enumerate(cells)]
            lines.append(f"| {variant} | {' | '.join(shown)} |")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """The table for notebooks, with every name escaped."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self._head)
        body = ""
        for variant, cells in self.rows.items():
            shown = (f"<b>{cell}</b>" if cell.mean == self.best(i) else str(cell) for i, cell in enumerate(cells))
            name = f'<th style="text-align: left">{escape(variant)}</th>'
            body += f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>"
        caption = escape(f"{self.caption}; the best of each column in bold")
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    @property
    def _head(self) -> list[str]:
        return ["variant", *(metric.replace("_", " ") for metric in self.metrics)]

    @property
    def caption(self) -> str:
        """The steps and seeds behind the numbers."""
        return caption(self.steps, self.seeds)


def caption(steps: str, seeds: Sequence[int]) -> str:
    """The steps and seeds behind the numbers of a table."""
    listed = ", ".join(map(str, seeds))
    over = f"mean ± standard deviation over {len(seeds)} seeds ({listed})" if len(seeds) > 1 else f"seed {listed}"
    return f"{steps[0].upper()}{steps[1:]}; {over}" if steps else over


def summarize(results: Results, metrics: Sequence[str], window: int) -> Summary:
    """The table of an experiment."""
    used: dict[str, list[list[int]]] = {}
    rows = {
        variant: tuple(cell_over(runs.values(), metric, window, used) for metric in metrics)
        for variant, runs in results.items()
    }
    return Summary(tuple(metrics), rows, steps_in_words(used), tuple(next(iter(results.values()))))


def cell_over(runs: Iterable[Steps], metric: str, window: int, used: dict[str, list[list[int]]]) -> Cell:
    """The cell of a metric over some runs; the steps that it averages are added to `used`."""
    lasts = [last_records(records, metric, window) or records for records in runs]
    finals = np.array([series(last, metric)[1].mean() for last in lasts])
    used.setdefault(metric, []).extend([record["step"] for record in last] for last in lasts)
    return Cell(float(finals.mean()), float(finals.std(ddof=1)) if len(finals) > 1 else None)


# --- the ranking of a folder ---
@dataclass(frozen=True)
class Standing:
    """One variant; a cell is None if no record holds its metric."""

    variant: str
    cells: tuple[Cell | None, ...]  # one per metric of the folder
    bytes_per_node: float | None
    seeds: int
    finished: bool
    gossip: bool  # whether nodes talk to neighbors only
    plain: bool  # whether it is D-SGD with Metropolis-Hastings weights: the baseline of the field


@dataclass(frozen=True)
class Standings:
    """All variants of a folder."""

    metrics: tuple[str, ...]
    rows: tuple[Standing, ...]
    steps: str  # the steps that the numbers come from, in words; empty if there are none

    def ranked(self, column: int = 0) -> list[Standing]:
        """The variants that have a finite mean in this column, the best first."""
        if not self.metrics:
            return []
        sign = -1 if higher_is_better(self.metrics[column]) else 1
        found = [(cell.mean, row) for row in self.rows if (cell := row.cells[column]) and math.isfinite(cell.mean)]
        return [row for _, row in sorted(found, key=lambda pair: sign * pair[0])]


def standings(folder: RunFolder) -> Standings:
    """The ranking of a folder, from the runs that have records."""
    used: dict[str, list[list[int]]] = {}
    rows = []
    for variant in folder.variants:
        runs = [run for run in folder.of(variant) if run.records]
        sent = [size for run in runs if (size := _bytes_sent(run)) is not None]
        scene = next((run.scene for run in runs if run.scene is not None), {})
        kinds = scene.get("algorithm_kind"), scene.get("policy_kind")
        rows.append(
            Standing(
                variant,
                cells=tuple(_cell(runs, metric, folder.window, used) for metric in folder.metrics),
                bytes_per_node=float(np.mean(sent)) if sent else None,
                seeds=len(runs),
                finished=bool(runs) and len(runs) == len(folder.seeds) and all(run.finished for run in runs),
                gossip=not any(kind in _NOT_GOSSIP for kind in kinds),
                plain=kinds == ("dsgd", "metropolis-hastings"),
            )
        )
    return Standings(tuple(folder.metrics), tuple(rows), steps_in_words(used) if used else "")


def _cell(runs: list[Run], metric: str, window: int, used: dict[str, list[list[int]]]) -> Cell | None:
    finite = [[record for record in run.records if is_number(record.get(metric))] for run in runs]
    return cell_over(filter(None, finite), metric, window, used) if any(finite) else None


def _bytes_sent(run: Run) -> float | None:
    sizes = [run.records[-1].get(name) for name in ("bytes_parameters", "bytes_sketches")]
    known = [size for size in sizes if is_number(size)]
    return sum(known) if known else None
