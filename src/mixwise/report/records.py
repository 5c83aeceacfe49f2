"""The records of runs: the names of their metrics, and the numbers that tables, figures and pages take from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError

Steps: TypeAlias = list[dict[str, Any]]  # one dictionary of values per recorded step
Item = TypeVar("Item")

X_AXES = ("bytes_parameters", "bytes_sketches", "network_seconds")  # shown as axes, not as curves
_PERCENT = ("accuracy", "gradient_mixing_error_relative", "messages_lost", "rows_clipped")
_HIGHER = ("accuracy", "auc", "f1", "precision", "r2", "recall", "score")
_NAMES = {
    "accuracy": ("Accuracy", "mean over the nodes' own models"),
    "accuracy_worst": ("Accuracy of the worst node", "the lowest accuracy of any node's model"),
    "accuracy_average_model": ("Accuracy of the averaged model", "one model, the mean of all nodes' parameters"),
    "accuracy_spread": ("Spread of accuracy", "standard deviation over the nodes"),
    "distance_to_optimum": ("Distance to the optimum", "(1/n) Σ ‖x_i − x*‖²"),
    "loss": ("Training loss", "mean over nodes, each on its own data"),
    "consensus_distance": ("Consensus distance", "(1/n) ‖X − X̄‖²: how far apart the nodes' models are"),
    "disagreement_median": ("Disagreement of the median node", "‖x_i − x̄‖² of the node in the middle"),
    "disagreement_90th_percentile": ("Disagreement of the 90th percentile", "‖x_i − x̄‖²; a tenth is farther away"),
    "disagreement_largest": ("Disagreement of the farthest node", "the largest ‖x_i − x̄‖² of all nodes"),
    "gradient_mixing_error": ("Gradient mixing error", "‖Wᵀ(G − Ḡ)‖²: gradient disagreement left by one mixing"),
    "gradient_mixing_error_relative": ("Gradient disagreement left", "GME after mixing as a share of before"),
    "consensus_factor": ("Consensus factor p", "1 − ‖W − J‖²: how much of any disagreement one mixing removes"),
    "heterogeneity": ("Heterogeneity ζ²", "how much the nodes' gradients differ"),
    "relative_heterogeneity": ("Heterogeneity after mixing ζ′²", "the part of ζ² that one mixing leaves"),
    "gradient_mixing_error_before": ("Gradient disagreement", "‖G − Ḡ‖² before mixing"),
    "messages_lost": ("Messages lost", "share of all messages so far, in a simulation with faults"),
    "nodes_away": ("Nodes away", "in this step, in a simulation with faults"),
    "rows_clipped": ("Rows clipped", "share of the rows that nodes mixed so far, with robust: clip"),
    "rows_stopped": ("Rows stopped", "NaN, infinite or absurd rows that were left out so far"),
    "solve_iterations": ("Solver iterations", "iterations of the last weight optimization"),
    "solves": ("Solves", "weight optimizations so far"),
    "solves_failed": ("Failed solves", "weight optimizations so far that found no weights; those before stayed in use"),
}
_OTHERS = "_unoptimized"  # the end of the names of figures of weights that take turns with optimized ones


# --- metrics ---
class MetricName(NamedTuple):
    """A metric as pages and figures show it."""

    key: str
    label: str
    note: str  # what it measures, in a few words
    percent: bool
    higher: bool  # whether higher is better


def metric_name(key: str) -> MetricName:
    """How to show a metric; an unknown one is shown by its key."""
    if key.endswith(_OTHERS) and (base := key.removesuffix(_OTHERS)) in _NAMES:
        label, note = f"{_NAMES[base][0]}, other weights", f"{_NAMES[base][1]}; of the weights between optimized ones"
    else:
        label, note = _NAMES.get(key, (key.replace("_", " "), ""))
    return MetricName(key, label, note, key.startswith(_PERCENT), higher_is_better(key))


def higher_is_better(metric: str) -> bool:
    """Whether higher is better, which is decided by the name; every other metric is an error."""
    return metric.startswith(_HIGHER) and not metric.endswith("_spread")


def in_order(found: set[str], first: list[str]) -> list[str]:
    """Metrics in the order of a menu: those of the recipe, then the known ones, then the rest."""
    known = [*first, *_NAMES, *sorted(found)]
    return [key for key in dict.fromkeys(known) if key in found and key not in X_AXES]


# --- numbers ---
def is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be drawn: a finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def holding(records: Steps, metric: str, end: float = math.inf) -> Steps:
    """The records up to the step `end` in which a metric is a finite number."""
    return [record for record in records if record["step"] <= end and is_number(record.get(metric))]


def series(records: Steps, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The steps (T,) whose records hold a metric, and its values (T,)."""
    found = [record for record in records if isinstance(record.get(metric), int | float)]
    if not found:
        numbers = [name for name, value in records[-1].items() if isinstance(value, int | float)] if records else []
        raise ConfigError(f"no record holds the metric {metric!r}; choose from {', '.join(numbers)}")
    return np.array([record["step"] for record in found]), np.array([record[metric] for record in found], np.float64)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items: the first, the last, and evenly spaced ones."""
    return [items[k] for k in np.unique(np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int))]


def rounded(value: float, digits: int = 4) -> float | int | None:
    """A number with so many significant digits; None if it is not finite, which JSON cannot hold."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


# --- curves of a page ---
def columns(
    runs: Sequence[Steps], metrics: Sequence[str], most: int, window: int = 1, digits: int = 4
) -> list[list[dict[str, Any]]]:
    """The metrics of each run, in groups recorded at the same steps: {steps, x: axes, y: metrics}.

    Each has at most `most` points, at the same steps in all runs, and values of so many digits.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for metric in metrics:
        steps = sorted({record["step"] for records in runs for record in holding(records, metric)})
        if steps:
            groups.setdefault(tuple(thinned(steps, most)), []).append(metric)
    made = [[_group(run, kept, names, window, digits) for kept, names in groups.items()] for run in runs]
    return [[group for group in of_run if group is not None] for of_run in made]


def _group(records: Steps, kept: tuple[int, ...], names: list[str], window: int, digits: int) -> dict[str, Any] | None:
    """The points of a run, one at each kept step that has a new record.

    A point averages the last `window` steps, or all records since the point before if these are more. The last point is
    the number in the table: exactly `window` steps.
    """
    if not (found := holding(records, names[0])):
        return None
    steps = np.array([record["step"] for record in found])
    end = np.searchsorted(steps, kept, side="right")
    new = np.diff(end, prepend=0) > 0
    at, end = np.array(kept)[new], end[new]
    start = np.minimum(np.searchsorted(steps, at - window, side="right"), np.concatenate([[0], end[:-1]]))
    start[-1] = np.searchsorted(steps, steps[-1] - window, side="right")
    spans = np.stack([start, end], axis=1).ravel()
    last = [found[k - 1] for k in end]
    group: dict[str, Any] = {"steps": at.tolist(), "x": {}, "y": {}}
    for axis in X_AXES:
        if all(is_number(record.get(axis)) for record in last):
            group["x"][axis] = [rounded(record[axis], 6) for record in last]
    for name in names:
        values = [value if is_number(value := record.get(name)) else np.nan for record in found]
        # Summed span by span, since differences of long sums lose small values.
        means = np.add.reduceat([*values, 0.0], spans)[::2] / (end - start)
        group["y"][name] = [rounded(mean, digits) for mean in means.tolist()]
    return group


# --- steps in words ---
def steps_in_words(used: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """The steps that the numbers of a table come from; `used` holds the steps of every run, by metric.

    In words, steps are counted: a record of step 149, as in metrics.jsonl, is one after 150 steps.

    >>> steps_in_words({"loss": [[195, 196, 197], [195, 196, 197]], "accuracy": [[197], [197]]})
    'loss: average after 196 to 198 steps; accuracy: after 198 steps'
    >>> steps_in_words({"accuracy": [[19, 32]]}), steps_in_words({"accuracy": [[99], [199]]})
    ('average after 20 and 33 steps', 'at the end of each run, after 100 to 200 steps')
    """
    metrics: dict[str, list[str]] = {}
    for metric, runs in used.items():
        metrics.setdefault(_steps_of_runs(runs), []).append(metric.replace("_", " "))
    if len(metrics) == 1:
        return next(iter(metrics))
    return "; ".join(f"{', '.join(names)}: {steps}" for steps, names in metrics.items())


def _steps_of_runs(runs: Sequence[Sequence[int]]) -> str:
    counts, ends = [step + 1 for step in runs[0]], [run[-1] + 1 for run in runs]
    if any(list(run) != list(runs[0]) for run in runs):
        average = "" if all(len(run) == 1 for run in runs) else "average "
        return f"{average}at the end of each run, after {min(ends)} to {max(ends)} steps"
    if len(counts) == 1:
        return f"after {counts[0]} step{'s' * (counts[0] > 1)}"
    if all(b == a + 1 for a, b in pairwise(counts)):
        return f"average after {counts[0]} to {counts[-1]} steps"
    if len(counts) > 5:
        return f"average of {len(counts)} records after {counts[0]} to {counts[-1]} steps"
    return f"average after {', '.join(map(str, counts[:-1]))} and {counts[-1]} steps"
