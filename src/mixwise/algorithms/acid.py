"""A²CiD²: gossip between pairs, accelerated by a second copy of every row (Nabli et al. 2023).

    X̃ takes the same steps as X:  X̃′ = X̃ − U
    before each round:            X, X̃ ← M + κD, M − κD with M = (X + X̃)/2, D = (X − X̃)/2, κ = exp(−2η)
    each round:                   Δ = WᵀX − X;  X⁺ = X + Δ;  X̃⁺ = X̃ + 2α̃Δ

The constants follow from the graph: η = ½√(λ₂/χ) and α̃ = ½/√(λ₂χ), with λ₂ the smallest eigenvalue above 0 of its
Laplacian Λ and χ the mean of ½(e_i − e_j)ᵀΛ⁺(e_i − e_j) over the edges (the authors take the maximum). The weight of
an edge in Λ is the share of rounds in which its nodes meet, taken as 1/max(deg i, deg j). Only X travels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State

_MOST_NODES = 4096  # whose eigenvalues are computed


@part(
    "acid", title="A²CiD²", cite="Nabli et al. 2023",
    step="X⁺ = WᵀX′, X̃⁺ = X̃′ + 2α̃(WᵀX′ − X′)", note="Meant for `pairs` and other matchings",
)  # fmt: skip
@dataclass(frozen=True)
class ACiD(Algorithm):
    """Accelerated gossip: for few rounds per mixing, alone or inside quasi-global momentum.

    The authors let pairs meet at random times; here the rounds are those of the policy, at equal distances in time, and
    the constants are those of one round.
    """

    needs = Needs(previous=True)

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with X̃ = X."""
        eta, alpha = constants(context.graph)
        return State(rows={"tilde": X.clone()}, scratch={"approach": (1 - math.exp(-2 * eta)) / 2, "factor": 2 * alpha})

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return M + κD, the rows of the first round; X̃′ − X′ is X̃ − X."""
        return (state.rows["tilde"] - round.before).mul_(state.scratch["approach"]).add_(round.X_prime)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Let X and X̃ approach each other before every round, and move both by the round."""
        X, tilde = round.X_prime, state.rows["tilde"]
        tilde.add_(X).sub_(round.before)
        for W in plan.one_channel("A²CiD²"):
            closer = (tilde - X).mul_(state.scratch["approach"])
            X.add_(closer)
            tilde.sub_(closer)
            moved = network.mix(X, W).sub_(X)
            X.add_(moved)
            tilde.add_(moved, alpha=state.scratch["factor"])


def constants(graph: Graph) -> tuple[float, float]:
    """Return η and α̃ of one round of matchings on a connected graph.

    >>> from mixwise.graphs import complete
    >>> eta, alpha = constants(complete(2))
    >>> round(eta, 12), round(alpha, 12)
    (1.0, 0.5)
    """
    graph.require_undirected("A²CiD²")
    if graph.n > _MOST_NODES:
        raise MixingError(
            f"A²CiD² needs the eigenvalues of a graph of {graph.n} nodes, and at most {_MOST_NODES} are allowed; "
            f"use algorithm: quasi-global"
        )
    if not graph.edges:
        return 0.0, 0.5
    i, j = graph.edge_array.T
    degrees = np.bincount(graph.edge_array.ravel(), minlength=graph.n)
    Lambda = np.zeros((graph.n, graph.n))
    Lambda[i, j] = Lambda[j, i] = -1 / np.maximum(degrees[i], degrees[j])
    np.fill_diagonal(Lambda, -Lambda.sum(axis=1))
    values, vectors = np.linalg.eigh(Lambda)
    gap = max(values[1], 1e-12)  # 0 if the graph is not connected, which is reported elsewhere
    across = vectors[i, 1:] - vectors[j, 1:]
    chi = 0.5 * float((across**2 / np.maximum(values[1:], gap)).sum(axis=1).mean())
    return 0.5 * math.sqrt(gap / chi), 0.5 / math.sqrt(gap * chi)
