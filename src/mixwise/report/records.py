"""The records of runs, and the numbers that tables and figures take from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError

Steps: TypeAlias = list[dict[str, Any]]  # one dictionary of values per recorded step
Results: TypeAlias = dict[str, dict[int, Steps]]  # variant -> seed -> steps


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be drawn: a finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def series(steps: Steps, metric: str) -> npt.NDArray[np.float64]:
    """One metric over all records that hold it, (T,)."""
    found = [step[metric] for step in steps if metric in step]
    if not found:
        numbers = [name for name, value in steps[-1].items() if isinstance(value, int | float)] if steps else []
        raise ConfigError(f"no record holds the metric {metric!r}; choose from {', '.join(numbers)}")
    return np.array(found, dtype=np.float64)


def recorded_steps(steps: Steps, metric: str) -> npt.NDArray[np.int64]:
    """The steps whose records hold the metric."""
    return np.array([step["step"] for step in steps if metric in step])


def last_records(records: Steps, metric: str, window: int) -> Steps:
    """The records that a table averages: those of the last `window` steps up to the metric's last record.

    A window counts steps, not records: accuracies that are 13 steps apart are not averaged by a window of 5.
    """
    found = [record for record in records if metric in record]
    return [record for record in found if record["step"] > found[-1]["step"] - window]


def rolling_mean(records: Steps, metric: str, window: int) -> npt.NDArray[np.float64]:
    """The metric at every step that recorded it, averaged over the last `window` steps, (T,)."""
    steps, values = recorded_steps(records, metric), series(records, metric)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    last = np.arange(1, len(values) + 1)
    first = np.searchsorted(steps, steps - window, side="right")
    means: npt.NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return means


def steps_in_words(used: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """The steps that the numbers of a table come from; `used` holds the steps of every run, by metric.

    >>> steps_in_words({"loss": [[195, 196, 197], [195, 196, 197]], "accuracy": [[197], [197]]})
    'loss: average of steps 195–197; accuracy: step 197'
    >>> steps_in_words({"accuracy": [[19, 32]]}), steps_in_words({"accuracy": [[99], [199]]})
    ('average of steps 19 and 32', 'last step of each run (99–199)')
    """
    metrics: dict[str, list[str]] = {}
    for metric, runs in used.items():
        metrics.setdefault(_steps_of_runs(runs), []).append(metric.replace("_", " "))
    if len(metrics) == 1:
        return next(iter(metrics))
    return "; ".join(f"{', '.join(names)}: {steps}" for steps, names in metrics.items())


def _steps_of_runs(runs: Sequence[Sequence[int]]) -> str:
    steps, ends = runs[0], [run[-1] for run in runs]
    if any(list(run) != list(steps) for run in runs):
        several = "last step" if all(len(run) == 1 for run in runs) else "average of the last steps"
        return f"{several} of each run ({min(ends)}–{max(ends)})"
    if len(steps) == 1:
        return f"step {steps[0]}"
    if all(b == a + 1 for a, b in pairwise(steps)):
        return f"average of steps {steps[0]}–{steps[-1]}"
    if len(steps) > 5:
        return f"average of {len(steps)} steps from {steps[0]} to {steps[-1]}"
    return f"average of steps {', '.join(map(str, steps[:-1]))} and {steps[-1]}"
