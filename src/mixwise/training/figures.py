"""Disagreement between the rows of all nodes, and the effect of mixing on it; collective calls, with equal results.

In float64, a few columns at a time, so that large rows are never copied whole. Every process takes the same columns at
the same time, however many rows it has. Legend: rows, X, G (m, d), those that this process owns; n nodes in all.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from mixwise.mixing import MixingMatrix, consensus_factor
from mixwise.protocols import Network, Plan
from mixwise.training.mixing_history import MixingHistory

_BLOCK = 1 << 18  # numbers of one block of columns of all n nodes: 2 MB
_NARROWEST = 64  # columns of a block: with fewer, most of what is read from memory would not be used
LARGE = 1024  # nodes; above, the consensus factor would take more time than a step
_SUFFIXES = "", "_unoptimized"
OF_OTHERS = tuple(
    name + _SUFFIXES[1]
    for name in (
        "gradient_mixing_error",
        "gradient_mixing_error_relative",
        "relative_heterogeneity",
        "consensus_factor",
    )
)
"""The figures of weights that were used in turn with optimized ones."""
_SHARES = {"median": 0.5, "90th_percentile": 0.9, "largest": 1.0}


@torch.no_grad()
def disagreements(rows: torch.Tensor, network: Network, *mixings: tuple[MixingMatrix, ...]) -> torch.Tensor:
    """Return the squared norms of the rows of X − X̄ and, for each mixing, of Wᵀ(X − X̄) with W = W₁W₂⋯; not counted.

    The result is (h, 1 + mixings), without hostile nodes; h = n without faults. The sums over all rows are ‖X − X̄‖²_F
    and ‖Wᵀ(X − X̄)‖²_F. Of gradients the first is h ζ², the others are gradient mixing errors; of parameters the first
    is h times the consensus distance.
    """
    width = max(_NARROWEST, _BLOCK // network.graph.n)
    squares = torch.zeros(len(rows), 1 + len(mixings), dtype=torch.float64, device="cpu")
    seen = network.measuring()
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width].to(device="cpu", dtype=torch.float64)  # not all devices have float64
        part = part - seen.average(part)
        squares[:, 0] += part.square().sum(1)
        for column, rounds in enumerate(mixings, 1):
            squares[:, column] += seen.mix(part, rounds).square().sum(1)
    return seen.gather(squares)


def mixing_figures(
    X: torch.Tensor, G: torch.Tensor | None, history: MixingHistory, network: Network
) -> dict[str, float]:
    """Return the disagreement of the models X and the gradients G, and what the weights of a mixing do about it.

    The weights are the last optimized ones of the history, otherwise the last ones. If both kinds were used, the others
    have figures of their own, with the suffix "_unoptimized". All are evaluated on G, which need not be the gradients
    that were mixed: by Proposition 1 of the paper, the figures of one W change slowly, and no gradients are kept.

    The consensus factor p is left out where a process knows only the weights of its own nodes. Above 1,024 nodes, the
    distribution of ‖x_i − x̄‖² over the nodes takes its place.
    """
    each = disagreements(X, network)
    n, heard = network.graph.n, len(each)
    values = {"consensus_distance": float(each.sum(0)[0]) / heard}
    if n > LARGE:
        distances = each[:, 0].sort().values
        values |= {f"disagreement_{name}": float(distances[round(q * (heard - 1))]) for name, q in _SHARES.items()}
    plans = [plan for plan in (history.optimized, history.other) if plan is not None and plan.matrices]
    if G is not None:
        before, *after = disagreements(G, network, *(plan.updates or plan.params for plan in plans)).sum(0).tolist()
        values["heterogeneity"] = before / heard
        if plans:
            values["gradient_mixing_error_before"] = before
        for error, suffix in zip(after, _SUFFIXES, strict=False):
            values |= {
                f"gradient_mixing_error{suffix}": error,
                f"gradient_mixing_error_relative{suffix}": error / before if before > 0 else 0.0,
                f"relative_heterogeneity{suffix}": error / heard,
            }
    for plan, suffix in zip(plans, _SUFFIXES, strict=False):
        if n <= LARGE and plan.params and all(W.whole for W in plan.params):
            values[f"consensus_factor{suffix}"] = _consensus_factor(plan.params)
    return values


@lru_cache(maxsize=8)  # an SVD; most runs use one matrix, or a few in turn
def _consensus_factor(rounds: tuple[MixingMatrix, ...]) -> float:
    """p of one mixing with these matrices."""
    return consensus_factor(Plan(rounds).params_product)
