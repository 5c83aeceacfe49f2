"""Figures of merit of a mixing, the same on every process; all of them must ask for it.

Legend: X, G (m, d), owned rows.
"""

from __future__ import annotations

import torch

from mixwise.mixing import consensus_factor
from mixwise.protocols import Network, Plan
from mixwise.training.disagreement import disagreement


def mixing_figures(X: torch.Tensor, G: torch.Tensor | None, plan: Plan | None, network: Network) -> dict[str, float]:
    """How far the models X and the gradients G are apart, and what the weights of a mixing do about it."""
    n = network.graph.n
    values = {"consensus_distance": disagreement(X, network)[0] / n}
    rounds = () if plan is None else plan.updates or plan.params
    if G is not None:
        before, after = disagreement(G, network, rounds)
        values["heterogeneity"] = before / n
        if rounds:
            values |= _mixing_values(before, after, n)
    return values if plan is None else values | _consensus_value(plan)


def _mixing_values(before: float, after: float, n: int) -> dict[str, float]:
    """What the weights of a mixing do to the gradients: GME before and after, absolute and relative; ζ′²."""
    return {
        "gradient_mixing_error_before": before,
        "gradient_mixing_error": after,
        "gradient_mixing_error_relative": after / before if before > 0 else 0.0,
        "relative_heterogeneity": after / n,
    }


def _consensus_value(plan: Plan) -> dict[str, float]:
    """p of the rounds of a mixing, unless there are none or this process knows the weights of its own nodes only."""
    if not plan.params or not all(W.whole for W in plan.params):
        return {}
    return {"consensus_factor": consensus_factor(plan.params_product)}
