"""What the metrics of a record are called where people read them."""

from __future__ import annotations

from typing import NamedTuple

from mixwise.report.results import higher_is_better


class MetricName(NamedTuple):
    """A metric as a page shows it."""

    key: str
    label: str
    note: str  # what it measures, in a few words
    percent: bool
    higher: bool  # whether more is better


_NAMES = {
    "accuracy": ("Accuracy", "mean over the nodes' own models"),
    "accuracy_worst": ("Accuracy of the worst node", "the node whose model does worst"),
    "accuracy_average_model": ("Accuracy of the averaged model", "one model, the mean of all nodes' parameters"),
    "accuracy_spread": ("Spread of accuracy", "standard deviation over the nodes"),
    "distance_to_optimum": ("Distance to the optimum", "(1/n) Σ ‖x_i − x*‖²"),
    "loss": ("Training loss", "mean over nodes, each on its own data"),
    "consensus_distance": ("Consensus distance", "(1/n) ‖X − X̄‖²: how far apart the nodes' models are"),
    "gradient_mixing_error": ("Gradient mixing error", "‖Wᵀ(G − Ḡ)‖²: disagreement of gradients left by one mixing"),
    "gradient_mixing_error_relative": ("Gradient disagreement left", "GME after mixing as a share of before"),
    "consensus_factor": ("Consensus factor p", "1 − ‖W − J‖²: how much of any disagreement one mixing removes"),
    "heterogeneity": ("Heterogeneity ζ²", "how much the nodes' gradients differ"),
    "relative_heterogeneity": ("Heterogeneity after mixing ζ′²", "what one mixing leaves of ζ²"),
    "gradient_mixing_error_before": ("Disagreement of gradients", "‖G − Ḡ‖² before mixing"),
    "solve_iterations": ("Solver iterations", "of the optimization of the weights"),
}
_PERCENT = ("accuracy", "gradient_mixing_error_relative")
X_AXES = ("bytes_parameters", "bytes_sketches", "network_seconds")  # shown as axes, not as curves


def metric_name(key: str) -> MetricName:
    """How to show a metric; one that is not known goes by its own name."""
    label, note = _NAMES.get(key, (key.replace("_", " "), ""))
    return MetricName(key, label, note, key.startswith(_PERCENT), higher_is_better(key))


def in_order(found: set[str], first: list[str]) -> list[str]:
    """Metrics as a menu lists them: those of the recipe, then the known ones, then the rest."""
    known = [*first, *_NAMES, *sorted(found)]
    return [key for key in dict.fromkeys(known) if key in found and key not in X_AXES]
