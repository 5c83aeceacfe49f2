"""Pairs of nodes chosen by how far apart they are: matchings from sketches of the rows that are about to be mixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mixwise.errors import MixingError
from mixwise.graphs import Graph, heaviest_matching
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.parts import Count, NonNegative, part
from mixwise.policies.estimates import GramEstimate, Objective
from mixwise.protocols import Context, Look, Network, Plan, Policy, Round, State
from mixwise.sketch import CountSketch, Sketch


@part(
    "heterogeneity-aware-matchings", title="matchings that remove most of the disagreement, chosen at every mixing",
    does="matchings chosen by how far apart the nodes are, `rounds` of them at every mixing; by default as many as fit "
    "into the bytes of ordinary gossip",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAwareMatchings(Policy):
    """At every mixing, `rounds` matchings one after the other, each the one that removes most of the disagreement.

    Two nodes that average remove ½‖x_i − x_j‖² of Tr Γ, which is exactly what the best weights 1/2 and 1/2 can do for
    a pair; a matching removes the sum over its pairs. Γ is known from sketches, so all nodes find the same matching,
    and after a round it is known to be WᵀΓW, so the next round needs no sketches of its own. An edge that was just
    used has nothing left to remove, so others get their turn. The edges of a graph fall into at most Δ + 1 matchings,
    so every round contracts the disagreement by the factor 1 − λ₂ / 2(Δ + 1) or better (λ₂: algebraic connectivity).

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

    rounds: Count | None = None
    sketch: Sketch = CountSketch(100)
    objective: Objective = "parameters"
    balance: NonNegative = 0.1

    @property
    def _estimate(self) -> GramEstimate:
        return GramEstimate(self.sketch, self.objective, balance=self.balance)

    def init(self, context: Context) -> State:
        """Reject algorithms that need symmetric weights: one matching is symmetric, several in a row are not."""
        if context.needs.symmetric and self.rounds != 1:
            raise MixingError(
                "the algorithm needs symmetric weights, and several matchings in a row are not; "
                "use rounds = 1, or HeterogeneityAware (kind: heterogeneity-aware), whose weights are"
            )
        state = self._estimate.init(context)
        state.scratch["lazy"] = context.needs.lazy
        return state

    def looks(self, t: int, state: State) -> Look | None:
        """Look at every mixing."""
        return Look(self._estimate.sketches(t, state))

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        Gamma, graph = self._estimate.look(round, state, network), network.graph
        rounds = []
        for _ in range(rounds_that_fit(graph) if self.rounds is None else self.rounds):
            W = metropolis_hastings(heaviest_matching(graph, removed_by_pairs(graph, Gamma)))
            W = lazy(W) if state.scratch["lazy"] else W
            Gamma = W.incoming @ (W.incoming @ Gamma).T  # WᵀΓW, without BLAS: all processes must find the same pairs
            rounds.append(W)
        return Plan(tuple(rounds))


def rounds_that_fit(graph: Graph) -> int:
    """Return how many matchings send no more than one round of ordinary gossip, but at most log₂ n."""
    graph.require_undirected("a matching")
    degree = 2 * len(graph.edge_array) // max(graph.n, 1)
    return max(1, min(degree, math.ceil(math.log2(max(graph.n, 2)))))


def removed_by_pairs(graph: Graph, Gamma: FloatArray) -> FloatArray:
    """Return ½‖x_i − x_j‖² = ½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
    i, j = graph.edge_array.T
    diagonal = np.diag(Gamma)
    removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - Gamma[i, j], 0.0)
    return removed
