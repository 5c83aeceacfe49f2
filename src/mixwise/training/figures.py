"""Disagreement between the rows of all nodes, and the effect of mixing on it; collective calls, with equal results.

In float64, a few columns at a time, so that large rows are never copied whole. Every process takes the same columns at
the same time, however many rows it has. Legend: rows, X, G (m, d), those that this process owns; n nodes in all.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from mixwise.mixing import MixingMatrix, consensus_factor
from mixwise.protocols import Network, Plan

_BLOCK = 1 << 18  # numbers of one block of columns of all n nodes: 2 MB
_NARROWEST = 64  # columns of a block: with fewer, most of what is read from memory would not be used
LARGE = 1024  # nodes; above, the consensus factor would take more time than a step
_SHARES = {"median": 0.5, "90th_percentile": 0.9, "largest": 1.0}


@torch.no_grad()
def disagreements(rows: torch.Tensor, network: Network, rounds: tuple[MixingMatrix, ...] = ()) -> torch.Tensor:
    """The squared norms of the rows of X − X̄ and of Wᵀ(X − X̄), (n, 2), with W = W₁W₂⋯ (0 without it); not counted.

    The sums over all nodes are ‖X − X̄‖²_F and ‖Wᵀ(X − X̄)‖²_F. Of gradients the first is n ζ², the second the gradient
    mixing error; of parameters the first is n times the consensus distance.
    """
    width = max(_NARROWEST, _BLOCK // network.graph.n)
    squares = torch.zeros(len(rows), 2, dtype=torch.float64, device="cpu")  # of each row: before, after
    with network.traffic.pause():
        for start in range(0, rows.shape[1], width):
            part = rows[:, start : start + width].to(device="cpu", dtype=torch.float64)  # not all devices have float64
            part = part - network.average(part)
            squares[:, 0] += part.square().sum(1)
            for W in rounds:
                part = network.mix(part, W, out=part)
            if rounds:
                squares[:, 1] += part.square().sum(1)
        return network.gather(squares)


def mixing_figures(X: torch.Tensor, G: torch.Tensor | None, plan: Plan | None, network: Network) -> dict[str, float]:
    """The disagreement of the models X and the gradients G, and what the weights of a mixing do about it.

    The consensus factor p is left out where a process knows only the weights of its own nodes. Above 1,024 nodes, the
    distribution of ‖x_i − x̄‖² over the nodes takes its place.
    """
    n = network.graph.n
    each = disagreements(X, network)
    values = {"consensus_distance": float(each.sum(0)[0]) / n}
    if n > LARGE:
        distances = each[:, 0].sort().values
        values |= {f"disagreement_{name}": float(distances[round(q * (n - 1))]) for name, q in _SHARES.items()}
    rounds = () if plan is None else plan.updates or plan.params
    if G is not None:
        before, after = disagreements(G, network, rounds).sum(0).tolist()
        values["heterogeneity"] = before / n
        if rounds:
            values |= {
                "gradient_mixing_error_before": before,
                "gradient_mixing_error": after,
                "gradient_mixing_error_relative": after / before if before > 0 else 0.0,
                "relative_heterogeneity": after / n,
            }
    if n <= LARGE and plan is not None and plan.params and all(W.whole for W in plan.params):
        values["consensus_factor"] = _consensus_factor(plan.params)
    return values


@lru_cache(maxsize=8)  # an SVD; most runs use one matrix, or a few in turn
def _consensus_factor(rounds: tuple[MixingMatrix, ...]) -> float:
    """p of one mixing with these matrices."""
    return consensus_factor(Plan(rounds).params_product)
