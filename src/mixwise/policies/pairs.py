"""Matchings that remove the most disagreement: of a modeled Γ, planned from the graph, or of Γ from sketches.

Two nodes that average remove ½‖x_i − x_j‖² of Tr Γ, and a matching removes the sum over its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse

from mixwise.graphs import Graph, heaviest_matching
from mixwise.graphs.trees import two_coloring
from mixwise.mixing import MixingMatrix, exact_average, lazy, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.parts import NonNegative, part
from mixwise.policies.edge_coloring import EdgeColoring, InPairs, palindrome, round_off
from mixwise.policies.estimates import GramEstimate, Objective
from mixwise.protocols import Context, Look, Needs, Network, Plan, Round, State
from mixwise.sketch import CountSketch, Sketch

_PLANNED = 64  # mixings, the second half of which is then repeated
_MANY = 4096  # nodes; with more, a quarter of that is planned: a matching takes 80 bytes per node
_MOST_NODES = 256  # for which all of Γ is kept
_QUANTUM = 2.0**-20  # of D: entries of D Dᵀ are sums up to 64² of multiples of 2⁻⁴⁰, exact whatever the processor


@part(
    "pairs", title="pairs of neighbors in an order planned for the graph",
    does="pairs of neighbors in an order planned for the graph, `rounds` matchings at every mixing; no sketches",
)  # fmt: skip
@dataclass(frozen=True)
class Pairs(InPairs):
    """At every mixing, `rounds` matchings in an order that suits the graph; all nodes know it without any message.

    The order is that of `HeterogeneityAwareMatchings` for nodes whose data is unknown: each matching removes the most
    of a *modeled* Γ, that of nodes with noise of their own and a drift of their own, which stays the same at every
    mixing as their data does (`ModeledNodes`). On an even ring this is even-odd averaging. 64 mixings are planned (16
    if n > 4,096), when they are needed; then the second half of them is repeated. On regular bipartite graphs the
    colors of an edge coloring take turns instead where that leaves less of the modeled disagreement. With more than
    256 nodes only noise is modeled, and Γ kept on the edges, so that planning is linear in their number.
    Where the rounds suffice for an exact average (`mixing.exact_average`: n/2 on an even ring), they are one, with
    pairs that do not meet half way.

    For algorithms that need symmetric weights (D², EXTRA) the rounds run forth and back, M₁ M₂ M₁, by default at most
    one more than fit. Matchings are projections, so such a product has no negative eigenvalues.

    Args:
        rounds: matchings per mixing. By default as many as fit into the bytes of ordinary gossip, where every node
            sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up.
    """

    def init(self, context: Context) -> State:
        """Plan nothing yet."""
        schedule = _schedule(context.graph, self.count(context), context.needs.symmetric)
        return State(scratch={"schedule": schedule})

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        return Plan(state.scratch["schedule"].rounds_of(round.t))


class ModeledNodes:
    """Γ = N + D Dᵀ of nodes whose data is unknown, which move apart in two ways, the same for all.

    At every mixing a node adds noise of its own, N ← N + I, and moves on in a direction of its own, D ← D + I, which
    stays the same because its data does. A round makes N ← WᵀNW and D ← WᵀD.
    Γ is the same in all processes: sums of halves are rounded alike everywhere, and those of D Dᵀ are exact.
    """

    def __init__(self, graph: Graph) -> None:
        n = graph.n
        self.edges = None if n <= _MOST_NODES else graph.adjacency + sparse.eye_array(n)
        self.noise: Any = np.zeros((n, n)) if self.edges is None else sparse.csr_array((n, n))
        self.drift = np.zeros((n, n)) if self.edges is None else None

    def move_apart(self) -> None:
        """Take a step at every node."""
        if self.drift is None:
            self.noise = (self.noise + sparse.eye_array(self.noise.shape[0])).tocsr()
        else:
            self.noise, self.drift = self.noise + np.eye(len(self.noise)), self.drift + np.eye(len(self.noise))

    def mix(self, W: MixingMatrix) -> None:
        """Mix once; of large graphs, only N is kept, on the edges and the diagonal."""
        if self.drift is None:
            self.noise = (W.incoming @ self.noise @ W.sparse).multiply(self.edges).tocsr()
        else:
            self.noise = W.incoming @ (W.incoming @ self.noise).T
            self.drift = np.rint(W.incoming @ self.drift / _QUANTUM) * _QUANTUM

    def gram_matrix(self) -> FloatArray | sparse.csr_array:
        """Return Γ; of large graphs N alone."""
        Gamma: FloatArray | sparse.csr_array
        Gamma = self.noise if self.drift is None else self.noise + self.drift @ self.drift.T
        return Gamma

    @property
    def disagreement(self) -> float:
        """Tr (I − J)Γ."""
        Gamma = self.gram_matrix()
        return float(Gamma.trace() - Gamma.mean() * Gamma.shape[0])


class Schedule:
    """Matchings of a graph, planned for modeled nodes as far as they were asked for.

    Args:
        graph: an undirected graph.
        rounds: matchings per mixing.
        palindromes: whether the rounds run forth and back.
    """

    def __init__(self, graph: Graph, rounds: int, palindromes: bool) -> None:
        self.graph, self.rounds, self.palindromes = graph, rounds, palindromes
        self.planned: list[tuple[MixingMatrix, ...]] = []
        self._nodes = ModeledNodes(graph)
        self.repeated: list[tuple[MixingMatrix, ...]] = []  # mixings in turn, in place of a plan
        average = exact_average(graph) if 2**rounds >= graph.n and not palindromes else None
        if average and len(average) <= rounds:
            self.repeated = [average]
        elif _is_small_regular_and_bipartite(graph):
            colors = EdgeColoring(rounds).plans(Context(graph, needs=Needs(symmetric=palindromes)))
            in_turn = [plan.params for plan in colors]
            left = _disagreement(graph, [self.rounds_of(t) for t in range(_PLANNED)])
            if _disagreement(graph, [in_turn[t % len(in_turn)] for t in range(_PLANNED)]) < left:
                self.repeated = in_turn

    def rounds_of(self, t: int) -> tuple[MixingMatrix, ...]:
        """Return the matrices of mixing t."""
        if self.repeated:
            return self.repeated[t % len(self.repeated)]
        planned = _PLANNED if self.graph.n <= _MANY else _PLANNED // 4
        if t >= planned:
            t = planned // 2 + (t - planned) % (planned // 2)
        while len(self.planned) <= t:
            self.planned.append(self._next())
        return self.planned[t]

    def _next(self) -> tuple[MixingMatrix, ...]:
        self._nodes.move_apart()
        rounds = []
        for _ in range(self.rounds):
            rounds.append(best_pairs(self.graph, self._nodes.gram_matrix()))
            self._nodes.mix(rounds[-1])
        if not self.palindromes:
            return tuple(rounds)
        for W in rounds[-2::-1]:
            self._nodes.mix(W)
        return palindrome(tuple(rounds))


def _is_small_regular_and_bipartite(graph: Graph) -> bool:
    """Whether the colors of an edge coloring leave no node out, so that they may be in a better order than a plan."""
    one_degree = len(set(graph.degrees)) == 1 and graph.degrees[0] > 2  # a ring has one order only
    return graph.n <= _MOST_NODES and one_degree and two_coloring(graph) is not None


def _disagreement(graph: Graph, mixings: Sequence[tuple[MixingMatrix, ...]]) -> float:
    """What modeled nodes disagree by after a mixing, over the second half of them, rounded so that equals are equal."""
    nodes, left = ModeledNodes(graph), []
    for rounds in mixings:
        nodes.move_apart()
        for W in rounds:
            nodes.mix(W)
        left.append(nodes.disagreement)
    return round_off(sum(left[len(left) // 2 :]))


@lru_cache(maxsize=8)  # the runs of an experiment share it
def _schedule(graph: Graph, rounds: int, palindromes: bool) -> Schedule:
    return Schedule(graph, rounds, palindromes)


@part(
    "heterogeneity-aware-matchings", title="matchings that remove most of the disagreement, chosen at every mixing",
    does="matchings chosen by how far apart the nodes are, `rounds` of them at every mixing; by default as many as fit "
    "into the bytes of ordinary gossip",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAwareMatchings(InPairs):
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

    sketch: Sketch = CountSketch(100)
    objective: Objective = "parameters"
    balance: NonNegative = 0.1

    @property
    def _estimate(self) -> GramEstimate:
        return GramEstimate(self.sketch, self.objective, balance=self.balance)

    def init(self, context: Context) -> State:
        """Return the state of the estimate; algorithms that need symmetric weights allow one matching only."""
        state = self._estimate.init(context)
        state.scratch |= {"rounds": self.count(context, one_way=True), "lazy": context.needs.lazy}
        return state

    def looks(self, t: int, state: State) -> Look | None:
        """Look at every mixing."""
        return Look(self._estimate.sketches(t, state))

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        Gamma, graph = self._estimate.look(round, state, network), network.graph
        rounds = []
        for _ in range(state.scratch["rounds"]):
            W = best_pairs(graph, Gamma)
            W = lazy(W) if state.scratch["lazy"] else W
            Gamma = W.incoming @ (W.incoming @ Gamma).T  # WᵀΓW, without BLAS: all processes must find the same pairs
            rounds.append(W)
        return Plan(tuple(rounds))


def best_pairs(graph: Graph, Gamma: FloatArray | sparse.csr_array) -> MixingMatrix:
    """Return the weights of the matching that removes the most of Tr Γ."""
    return metropolis_hastings(heaviest_matching(graph, removed_by_pairs(graph, Gamma)))


def removed_by_pairs(graph: Graph, Gamma: FloatArray | sparse.csr_array) -> FloatArray:
    """Return ½‖x_i − x_j‖² = ½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
    i, j = graph.edge_array.T
    diagonal = Gamma.diagonal()
    removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - Gamma[i, j], 0.0)
    return removed
