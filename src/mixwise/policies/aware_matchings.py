"""Pairs of nodes chosen by how far apart they are: matchings from sketches of the rows that are about to be mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph, heaviest_matching
from mixwise.graphs.matchings import need_undirected
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.gram import GramEstimate, Objective
from mixwise.policies.plan import Gives, Observation, Plan, PolicyState
from mixwise.sketch import Sketch


class HeterogeneityAwareMatchings:
    """At every mixing, `rounds` matchings one after the other, each the one that removes most of the disagreement.

    Two nodes that average remove ½‖x_i − x_j‖² of Tr Γ, which is exactly what the best weights 1/2 and 1/2 can do for
    a pair; a matching removes the sum over its pairs. Γ is known from sketches, so all nodes find the same matching,
    and after a round it is known to be WᵀΓW, so the next round needs no sketches of its own. An edge that was just
    used has nothing left to remove: others get their turn.

    Args:
        rounds: matchings per mixing. Each node sends its row at most once in a round, so on a ring two rounds send
            what one round of ordinary gossip sends.
        sketch: how a node's row is compressed; a new operator is drawn at each mixing, the same on all nodes.
        objective: what must cancel, as in `HeterogeneityAware`; the rows that are really mixed by default.
        balance: weight of the parameters in the objective "both".
    """

    gives: Gives = "weights"

    def __init__(
        self,
        rounds: int = 2,
        *,
        sketch: Sketch | None = None,
        objective: Objective = "parameters",
        balance: float = 0.1,
    ) -> None:
        if rounds < 1:
            raise MixingError(f"rounds = {rounds}; a mixing has 1, 2, 3, … matchings")
        self.rounds, self.estimate = rounds, GramEstimate(sketch, objective, balance=balance)

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """A product of matchings is not symmetric; with one round it is, and its eigenvalues are 0 and 1."""

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
        need_undirected(network.graph, "a matching")
        Gamma = self.estimate.look(t, observed, network)
        rounds = []
        for _ in range(self.rounds):
            W = metropolis_hastings(heaviest_matching(network.graph, removed_by_pairs(network.graph, Gamma)))
            Gamma = W.to_dense().T @ Gamma @ W.to_dense()
            rounds.append(W)
        return Plan(tuple(rounds))

    def state(self) -> PolicyState:
        """Of the estimate of Γ."""
        return self.estimate.state()

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on from there."""
        self.estimate.load_state(tensors, values)


def removed_by_pairs(graph: Graph, Gamma: FloatArray) -> FloatArray:
    """½‖x_i − x_j‖² = ½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
    i, j = graph.edge_array.T
    diagonal = np.diag(Gamma)
    removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - Gamma[i, j], 0.0)
    return removed
