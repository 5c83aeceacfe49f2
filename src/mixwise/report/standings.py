"""Where every variant of a folder stands: its metrics over seeds, and what it has sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from mixwise.report.folder import Run, RunFolder
from mixwise.report.results import Steps, higher_is_better, last_records, steps_in_words
from mixwise.report.table import Cell

# Every node hears all others in these: a bound for gossip, not gossip.
_NOT_GOSSIP = ("full-averaging", "all-reduce", "local-sgd")


@dataclass(frozen=True)
class Standing:
    """One variant; cells that no record speaks of are None."""

    variant: str
    cells: tuple[Cell | None, ...]  # of the folder's metrics
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
    steps: str  # that the numbers come from, in words; empty if there are none

    def best(self, column: int) -> float | None:
        """The best mean of a column."""
        means = [cell.mean for row in self.rows if (cell := row.cells[column]) is not None and math.isfinite(cell.mean)]
        if not means:
            return None
        return max(means) if higher_is_better(self.metrics[column]) else min(means)

    def ranked(self, column: int = 0) -> list[Standing]:
        """Those that have a figure there, the best first."""
        sign = -1 if higher_is_better(self.metrics[column]) else 1
        there = [(cell.mean, row) for row in self.rows if (cell := row.cells[column]) and math.isfinite(cell.mean)]
        return [row for _, row in sorted(there, key=lambda pair: sign * pair[0])]


def standings(folder: RunFolder) -> Standings:
    """The table of a folder, from the runs that have records."""
    rows = []
    used: dict[str, list[list[int]]] = {}
    for variant in folder.variants:
        runs = [run for run in folder.of(variant) if run.records]
        cells = tuple(_cell(runs, metric, folder.window, used) for metric in folder.metrics)
        sent = [_sent(run.records) for run in runs]
        known = [size for size in sent if size is not None]
        scene = next((run.scene for run in runs if run.scene is not None), {})
        kinds = scene.get("algorithm_kind"), scene.get("policy_kind")
        rows.append(
            Standing(
                variant,
                cells,
                float(np.mean(known)) if known else None,
                len(runs),
                bool(runs) and all(run.finished for run in runs) and len(runs) == len(folder.seeds),
                not any(kind in _NOT_GOSSIP for kind in kinds),
                kinds == ("dsgd", "metropolis-hastings"),
            )
        )
    return Standings(tuple(folder.metrics), tuple(rows), steps_in_words(used) if used else "")


def _cell(runs: list[Run], metric: str, window: int, used: dict[str, list[list[int]]]) -> Cell | None:
    """The mean over seeds; the steps of the records behind it are added to `used`."""
    finite = [[record for record in run.records if is_number(record.get(metric))] for run in runs]
    lasts = [last_records(records, metric, window) for records in finite if records]
    if not lasts:
        return None
    used.setdefault(metric, []).extend([record["step"] for record in last] for last in lasts)
    finals = [np.mean(numbers(last, metric)) for last in lasts]
    return Cell(float(np.mean(finals)), float(np.std(finals, ddof=1)) if len(finals) > 1 else None)


def _sent(records: Steps) -> float | None:
    parts = [numbers(records[-1:], name) for name in ("bytes_parameters", "bytes_sketches")]
    return sum(part[0] for part in parts if part) if any(parts) else None


def numbers(records: Steps, metric: str) -> list[float]:
    """The values of a metric that are numbers."""
    return [float(value) for record in records if is_number(value := record.get(metric))]


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
