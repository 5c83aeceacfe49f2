"""The records of a run as columns, thinned to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixwise.report.folder import Run
from mixwise.report.metric_names import X_AXES
from mixwise.report.records import Steps, is_number


def columns(runs: Sequence[Run], metrics: Sequence[str], most: int) -> list[list[dict[str, Any]]]:
    """The metrics of each run, in groups recorded at the same steps: {steps, x: axes, y: metrics}.

    Where there are more than `most` records, a point is the mean of the records since the previous point.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for metric in metrics:
        if kept := _kept_steps(runs, metric, most):
            groups.setdefault(kept, []).append(metric)
    return [[group for kept, names in groups.items() if (group := _group(run.records, kept, names))] for run in runs]


def _kept_steps(runs: Sequence[Run], metric: str, most: int) -> tuple[int, ...]:
    """The steps at which a metric is shown, the same for all seeds: the first, the last, and evenly spaced ones."""
    steps = sorted({record["step"] for run in runs for record in run.records if is_number(record.get(metric))})
    if len(steps) > most:
        steps = [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, most).round().astype(int))]
    return tuple(steps)


def _group(records: Steps, kept: tuple[int, ...], names: list[str]) -> dict[str, Any] | None:
    found = [record for record in records if is_number(record.get(names[0]))]
    if not found:
        return None
    ends = np.searchsorted([record["step"] for record in found], kept, side="right")
    keep = np.flatnonzero(np.diff(ends, prepend=0) > 0)  # points that stand for at least one record of this run
    ends = ends[keep]
    last = [found[end - 1] for end in ends]
    group: dict[str, Any] = {"steps": [kept[k] for k in keep], "x": {}, "y": {}}
    for axis in X_AXES:
        if all(is_number(record.get(axis)) for record in last):
            group["x"][axis] = [rounded(record[axis], 6) for record in last]
    starts = np.concatenate([[0], ends[:-1]])
    for name in names:
        values = np.array([value if is_number(value := record.get(name)) else np.nan for record in found], dtype=float)
        means = np.add.reduceat(values[: ends[-1]], starts) / (ends - starts)
        group["y"][name] = [rounded(mean) for mean in means.tolist()]
    return group


def rounded(value: float, digits: int = 4) -> float | int | None:
    """A number with so many significant digits; None if it is not finite, which JSON cannot hold."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
