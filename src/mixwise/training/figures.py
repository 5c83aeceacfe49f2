"""Disagreement between the rows of all nodes, and the effect of mixing on it; collective calls, with equal results.

In float64, a few columns at a time, so that large rows are never copied whole. Every process takes the same columns at
the same time, however many rows it has. Legend: rows, X, G (m, d), those that this process owns; n nodes in all.
"""

from __future__ import annotations

import torch

from mixwise.mixing import MixingMatrix, consensus_factor
from mixwise.protocols import Network, Plan

_BLOCK = 1 << 18  # numbers of one block of columns of all n nodes: 2 MB


@torch.no_grad()
def disagreement(rows: torch.Tensor, network: Network, rounds: tuple[MixingMatrix, ...] = ()) -> tuple[float, float]:
    """‖X − X̄‖²_F over all n nodes, and ‖Wᵀ(X − X̄)‖²_F with W = W₁W₂⋯, one round each; not counted as traffic.

    Of gradients the first is n ζ², the second the gradient mixing error; of parameters the first is n times the
    consensus distance.
    """
    width = max(1, _BLOCK // network.graph.n)
    squares = torch.zeros(len(rows), 2, dtype=torch.float64, device="cpu")  # of each row: before, after
    with network.uncounted():
        for start in range(0, rows.shape[1], width):
            part = rows[:, start : start + width].to(device="cpu", dtype=torch.float64)  # not all devices have float64
            part = part - network.average(part)
            squares[:, 0] += part.square().sum(1)
            for W in rounds:
                part = network.mix(part, W, out=part)
            squares[:, 1] += part.square().sum(1)
        before, after = network.gather(squares).sum(0)
    return float(before), float(after)


def mixing_figures(X: torch.Tensor, G: torch.Tensor | None, plan: Plan | None, network: Network) -> dict[str, float]:
    """The disagreement of the models X and the gradients G, and what the weights of a mixing do about it.

    The consensus factor p is left out where a process knows only the weights of its own nodes.
    """
    n = network.graph.n
    values = {"consensus_distance": disagreement(X, network)[0] / n}
    rounds = () if plan is None else plan.updates or plan.params
    if G is not None:
        before, after = disagreement(G, network, rounds)
        values["heterogeneity"] = before / n
        if rounds:
            values |= {
                "gradient_mixing_error_before": before,
                "gradient_mixing_error": after,
                "gradient_mixing_error_relative": after / before if before > 0 else 0.0,
                "relative_heterogeneity": after / n,
            }
    if plan is not None and plan.params and all(W.whole for W in plan.params):
        values["consensus_factor"] = consensus_factor(plan.params_product)
    return values
