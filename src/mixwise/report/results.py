"""What the reports are made from: the records of all runs of an experiment."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError

Steps: TypeAlias = list[dict[str, Any]]  # one dictionary of values per step
Results: TypeAlias = dict[str, dict[int, Steps]]  # variant -> seed -> steps


def series(steps: Steps, metric: str) -> npt.NDArray[np.float64]:
    """One metric over all records that hold it, (T,)."""
    found = [step[metric] for step in steps if metric in step]
    if not found:
        numbers = [name for name, value in steps[-1].items() if isinstance(value, int | float)] if steps else []
        raise ConfigError(f"there is no metric {metric!r} in the records; there are: {', '.join(numbers)}")
    return np.array(found, dtype=np.float64)


def recorded_steps(steps: Steps, metric: str) -> npt.NDArray[np.int64]:
    """The steps whose records hold the metric."""
    return np.array([step["step"] for step in steps if metric in step])


def rolling_mean(values: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """The mean of the last `window` values at every step; of those there are, at the start."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    means: npt.NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return means


def higher_is_better(metric: str) -> bool:
    """Accuracies are to be large; all else that we measure is an error."""
    return metric.startswith("accuracy") and metric != "accuracy_spread"
