"""The records of a run as columns, thinned to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixwise.report.folder import Run
from mixwise.report.metric_names import X_AXES
from mixwise.report.results import Steps
from mixwise.report.standings import is_number

DIGITS = 4  # a screen shows no more


def kept_steps(runs: Sequence[Run], metric: str, most: int) -> list[int]:
    """The steps at which to show a metric, the same for all seeds: first and last, and evenly between them."""
    steps = sorted({record["step"] for run in runs for record in run.records if is_number(record.get(metric))})
    if len(steps) <= most:
        return steps
    return [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, most).round().astype(int))]


def columns(runs: Sequence[Run], metrics: Sequence[str], most: int) -> list[list[dict[str, Any]]]:
    """Per run, its metrics in groups that were recorded at the same steps: {steps, x: axes, y: metrics}.

    Where records were left out, a point is the mean of those since the point before it.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for metric in metrics:
        kept = tuple(kept_steps(runs, metric, most))
        if kept:
            groups.setdefault(kept, []).append(metric)
    return [[group for kept, names in groups.items() if (group := _group(run.records, kept, names))] for run in runs]


def _group(records: Steps, kept: tuple[int, ...], names: list[str]) -> dict[str, Any] | None:
    there = [record for record in records if is_number(record.get(names[0]))]
    if not there:
        return None
    steps = np.array([record["step"] for record in there])
    ends = np.searchsorted(steps, kept, side="right")
    keep = np.flatnonzero(np.diff(ends, prepend=0) > 0)  # points that stand for at least one record of this run
    ends = ends[keep]
    last = [there[end - 1] for end in ends]
    group: dict[str, Any] = {"steps": [kept[k] for k in keep], "x": {}, "y": {}}
    for axis in X_AXES:
        if all(is_number(record.get(axis)) for record in last):
            group["x"][axis] = [rounded(record[axis], 6) for record in last]
    starts = np.concatenate([[0], ends[:-1]])
    for name in names:
        values = np.array([value if is_number(value := record.get(name)) else np.nan for record in there], dtype=float)
        means = np.add.reduceat(values[: ends[-1]], starts) / (ends - starts)
        group["y"][name] = [rounded(mean) for mean in means.tolist()]
    return group


def rounded(value: float, digits: int = DIGITS) -> float | int | None:
    """A number with so many significant digits; None for what JSON does not know."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
