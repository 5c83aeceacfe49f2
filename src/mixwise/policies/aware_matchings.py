"""Pairs of nodes chosen by how far apart they are: matchings from sketches of the rows that are about to be mixed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph, heaviest_matching
from mixwise.graphs.matchings import need_undirected
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.gram import GramEstimate, Objective
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.plan import Gives, Observation, Plan, Policy, PolicyState
from mixwise.sketch import Sketch


class HeterogeneityAwareMatchings:
    """At every mixing, `rounds` matchings one after the other, each the one that removes most of the disagreement.

    Two nodes that average remove ½‖x_i − x_j‖² of Tr Γ, which is exactly what the best weights 1/2 and 1/2 can do for
    a pair; a matching removes the sum over its pairs. Γ is known from sketches, so all nodes find the same matching,
    and after a round it is known to be WᵀΓW, so the next round needs no sketches of its own. An edge that was just
    used has nothing left to remove: others get their turn. The edges of a graph fall into at most Δ + 1 matchings, so
    every round contracts the disagreement by the factor 1 − λ₂ / 2(Δ + 1) or better (λ₂: algebraic connectivity).

    The gain over one average with all neighbors comes from averaging pairs one after the other, not from looking at
    the data: on a ring, even and odd edges in turn do as well (docs/studies/mixing-policies.md).

    Args:
        rounds: matchings per mixing. By default as many as fit into the bytes of ordinary gossip, where every node
            sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up (pairs
            chosen freely would average exactly by then). Two on a ring, four on a 4 × 4 torus.
        sketch: how a node's row is compressed; a new operator is drawn at each mixing, the same on all nodes.
        objective: what must cancel, as in `HeterogeneityAware`; by default the rows that are really mixed.
        balance: weight of the parameters in the objective "both".
    """

    gives: Gives = "weights"
    changes = True
    lazy = False

    def __init__(
        self,
        rounds: int | None = None,
        *,
        sketch: Sketch | None = None,
        objective: Objective = "parameters",
        balance: float = 0.1,
    ) -> None:
        if rounds is not None and rounds < 1:
            raise MixingError(f"rounds = {rounds}; a mixing has 1, 2, 3, … matchings")
        self.rounds, self.estimate = rounds, GramEstimate(sketch, objective, balance=balance)

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """One matching is symmetric, several in a row are not; (I + W) / 2 of it, if it must be lazy."""
        if symmetric and self.rounds != 1:
            raise MixingError(
                "the algorithm needs symmetric weights, and several matchings in a row are not; "
                "take rounds = 1, or weights that are: HeterogeneityAware (kind: heterogeneity-aware)"
            )
        self.lazy = self.lazy or lazy

    def rename_streams(self, name: str) -> None:
        """Those of the sketches."""
        self.estimate.rename_streams(name)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """None before the first look."""
        return ()

    def observes(self, t: int) -> bool:
        """At every mixing."""
        return True

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """Of the updates, if the objective has them."""
        return self.estimate.sketches(t)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """The matchings of mixing t."""
        Gamma = self.estimate.look(t, observed, network)
        rounds = []
        for _ in range(rounds_that_fit(network.graph) if self.rounds is None else self.rounds):
            W = metropolis_hastings(heaviest_matching(network.graph, removed_by_pairs(network.graph, Gamma)))
            W = lazy(W) if self.lazy else W
            Gamma = W.incoming @ (W.incoming @ Gamma).T  # WᵀΓW, without BLAS: all processes must find the same pairs
            rounds.append(W)
        return Plan(tuple(rounds))

    def state(self) -> PolicyState:
        """Of the estimate of Γ."""
        return self.estimate.state()

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on from there."""
        self.estimate.load_state(tensors, values)


def rounds_that_fit(graph: Graph) -> int:
    """How many matchings send no more than one round of ordinary gossip, but not more than log₂ n."""
    need_undirected(graph, "a matching")
    degree = 2 * len(graph.edge_array) // max(graph.n, 1)
    return max(1, min(degree, math.ceil(math.log2(max(graph.n, 2)))))


def removed_by_pairs(graph: Graph, Gamma: FloatArray) -> FloatArray:
    """½‖x_i − x_j‖² = ½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
    i, j = graph.edge_array.T
    diagonal = np.diag(Gamma)
    removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - Gamma[i, j], 0.0)
    return removed


def auto_policy(graph: Graph, *, symmetric: bool = False, sketch: Sketch | None = None) -> Policy:
    """The gossip policy to start with: what did best in docs/studies/mixing-policies.md.

    Pairs of neighbors that average one after the other, chosen by their disagreement; where these cannot be, on
    directed graphs and for algorithms that need symmetric weights (D², EXTRA), optimized weights: GME of updates and
    parameters at every mixing.
    """
    if graph.directed or symmetric:
        return HeterogeneityAware(sketch=sketch, objective="both", regularization=0.02, symmetric=symmetric)
    return HeterogeneityAwareMatchings(sketch=sketch)
