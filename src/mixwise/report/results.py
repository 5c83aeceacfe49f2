"""What the reports are made from: the records of all runs of an experiment."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError

Steps: TypeAlias = list[dict[str, Any]]  # one dictionary of values per step
Results: TypeAlias = dict[str, dict[int, Steps]]  # variant -> seed -> steps


def series(steps: Steps, metric: str) -> npt.NDArray[np.float64]:
    """One metric over all steps, (T,)."""
    if steps and metric not in steps[0]:
        numbers = [name for name, value in steps[0].items() if isinstance(value, int | float)]
        raise ConfigError(f"there is no metric {metric!r} in the records; there are: {', '.join(numbers)}")
    return np.array([step[metric] for step in steps], dtype=np.float64)


def rolling_mean(values: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """The mean of the last `window` values at every step; of those there are, at the start."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    means: npt.NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return means
