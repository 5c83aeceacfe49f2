"""Names of metrics, as pages and figures show them."""

from __future__ import annotations

from typing import NamedTuple


class MetricName(NamedTuple):
    """How a metric is shown."""

    key: str
    label: str
    note: str  # what it measures, in a few words
    percent: bool
    higher: bool  # whether higher is better


_NAMES = {
    "accuracy": ("Accuracy", "mean over the nodes' own models"),
    "accuracy_worst": ("Accuracy of the worst node", "the lowest accuracy of any node's model"),
    "accuracy_average_model": ("Accuracy of the averaged model", "one model, the mean of all nodes' parameters"),
    "accuracy_spread": ("Spread of accuracy", "standard deviation over the nodes"),
    "distance_to_optimum": ("Distance to the optimum", "(1/n) Σ ‖x_i − x*‖²"),
    "loss": ("Training loss", "mean over nodes, each on its own data"),
    "consensus_distance": ("Consensus distance", "(1/n) ‖X − X̄‖²: how far apart the nodes' models are"),
    "gradient_mixing_error": ("Gradient mixing error", "‖Wᵀ(G − Ḡ)‖²: gradient disagreement left by one mixing"),
    "gradient_mixing_error_relative": ("Gradient disagreement left", "GME after mixing as a share of before"),
    "consensus_factor": ("Consensus factor p", "1 − ‖W − J‖²: how much of any disagreement one mixing removes"),
    "heterogeneity": ("Heterogeneity ζ²", "how much the nodes' gradients differ"),
    "relative_heterogeneity": ("Heterogeneity after mixing ζ′²", "the part of ζ² that one mixing leaves"),
    "gradient_mixing_error_before": ("Gradient disagreement", "‖G − Ḡ‖² before mixing"),
    "solve_iterations": ("Solver iterations", "iterations of the weight optimization"),
}
_PERCENT = ("accuracy", "gradient_mixing_error_relative")
X_AXES = ("bytes_parameters", "bytes_sketches", "network_seconds")  # shown as axes, not as curves


def metric_name(key: str) -> MetricName:
    """How to show a metric; an unknown one is shown by its key."""
    label, note = _NAMES.get(key, (key.replace("_", " "), ""))
    return MetricName(key, label, note, key.startswith(_PERCENT), higher_is_better(key))


def higher_is_better(metric: str) -> bool:
    """Whether higher is better: true for accuracies; every other metric is an error."""
    return metric.startswith("accuracy") and metric != "accuracy_spread"


def in_order(found: set[str], first: list[str]) -> list[str]:
    """Metrics in the order of a menu: those of the recipe, then the known ones, then the rest."""
    known = [*first, *_NAMES, *sorted(found)]
    return [key for key in dict.fromkeys(known) if key in found and key not in X_AXES]
