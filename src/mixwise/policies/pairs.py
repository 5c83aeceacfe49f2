"""Matchings that remove the most disagreement: of a modeled Γ, planned from the graph, or of Γ from sketches.

Two nodes that average remove ½‖x_i − x_j‖² of Tr Γ, and a matching removes the sum over its pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from mixwise.graphs import Graph, heaviest_matching
from mixwise.graphs.trees import two_coloring
from mixwise.mixing import MixingMatrix, exact_average, lazy, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.parts import NonNegative, part
from mixwise.policies.controls import Permuted
from mixwise.policies.edge_coloring import EdgeColoring, InPairs, disagreement_left, mixed_gram, palindrome
from mixwise.policies.estimates import Estimate, Objective
from mixwise.protocols import Context, Look, Needs, Network, Plan, Round, State
from mixwise.sketch import CountSketch, Sketch

_PLANNED = 64  # mixings, the second half of which is then repeated
_MANY = 4096  # nodes; with more, a quarter of that is planned: a matching takes 80 bytes per node
_MOST_NODES = 256  # for which all of Γ is kept


@part(
    "pairs", title="pairs of neighbors in an order planned for the graph",
    does="pairs of neighbors in an order planned for the graph, `rounds` matchings at every mixing; no sketches",
)  # fmt: skip
@dataclass(frozen=True)
class Pairs(InPairs):
    """At every mixing, `rounds` matchings in an order that suits the graph; all nodes know it without any message.

    The order is that of `HeterogeneityAwareMatchings` for nodes whose data is unknown: each matching removes the most
    of a *modeled* Γ, to which every mixing adds I, noise of its own at every node, and which becomes WᵀΓW after
    every round. On an even ring this is even-odd averaging. 64 mixings are planned (16 if n > 4,096), when they are
    needed; then the second half of them is repeated. On regular bipartite graphs, such as even tori, the colors of an
    edge coloring take turns instead where that leaves less of Γ. With more than 256 nodes Γ is kept on the edges only,
    so that planning is linear in their number.
    Where the rounds suffice for an exact average (`mixing.exact_average`: n/2 on an even ring), they are one, with
    pairs that do not meet half way.

    For algorithms that need symmetric weights (D², EXTRA) the rounds run forth and back, M₁ M₂ M₁, by default at most
    one more than fit. Matchings are projections, so such a product has no negative eigenvalues.

    Args:
        rounds: matchings per mixing, at most n or 64. By default as many as the bytes of ordinary gossip allow, where
            every node sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up.
    """

    def init(self, context: Context) -> State:
        """Plan nothing yet."""
        schedule = _schedule(context.graph, self.count(context), context.needs.symmetric)
        return State(scratch={"schedule": schedule})

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        return Plan(state.scratch["schedule"].rounds_of(round.t))


class Schedule:
    """Matchings of a graph, planned from a modeled Γ as far as they were asked for.

    Args:
        graph: an undirected graph.
        rounds: matchings per mixing.
        palindromes: whether the rounds run forth and back.
    """

    def __init__(self, graph: Graph, rounds: int, palindromes: bool) -> None:
        self.graph, self.rounds, self.palindromes = graph, rounds, palindromes
        self.planned: list[tuple[MixingMatrix, ...]] = []
        self._kept = None if graph.n <= _MOST_NODES else graph.adjacency + sparse.eye_array(graph.n)
        self._Gamma = sparse.csr_array((graph.n, graph.n))
        self.repeated: list[tuple[MixingMatrix, ...]] = []  # mixings in turn, in place of a plan
        average = exact_average(graph) if 2**rounds >= graph.n and not palindromes else None
        if average and len(average) <= rounds:
            self.repeated = [average]
        elif _has_perfect_colors(graph):
            coloring = EdgeColoring(rounds).plans(Context(graph, needs=Needs(symmetric=palindromes)))
            colors = [plan.params for plan in coloring]
            planned = [self.rounds_of(t) for t in range(_PLANNED)]
            in_turn = [colors[t % len(colors)] for t in range(_PLANNED)]
            if disagreement_left(in_turn, _PLANNED // 2) < disagreement_left(planned, _PLANNED // 2):
                self.repeated = colors

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
        self._Gamma = (self._Gamma + sparse.eye_array(self.graph.n)).tocsr()
        rounds = []
        for _ in range(self.rounds):
            rounds.append(best_pairs(self.graph, self._Gamma))
            self._mix(rounds[-1])
        if not self.palindromes:
            return tuple(rounds)
        for W in rounds[-2::-1]:
            self._mix(W)
        return palindrome(tuple(rounds))

    def _mix(self, W: MixingMatrix) -> None:
        """Γ ← WᵀΓW; of large graphs, on the edges and the diagonal."""
        Gamma = W.incoming @ self._Gamma @ W.sparse
        self._Gamma = Gamma if self._kept is None else Gamma.multiply(self._kept).tocsr()


def _has_perfect_colors(graph: Graph) -> bool:
    """Whether the graph is small, and the colors of an edge coloring leave no node out and have several orders."""
    regular = len(set(graph.degrees)) == 1 and graph.degrees[0] > 2
    return graph.n <= _MOST_NODES and regular and two_coloring(graph) is not None


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
        rounds: matchings per mixing, at most n or 64. By default as many as the bytes of ordinary gossip allow, where
            every node sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up
            (pairs chosen freely would average exactly by then). Two on a ring, four on a 4 × 4 torus.
        sketch: how a node's row is compressed; a new operator is drawn at each mixing, the same on all nodes.
        objective: what must cancel, as in `HeterogeneityAware`; by default the rows that are really mixed.
        balance: weight of the parameters in the objective "both".
        control: "permuted": the sketches in an order redrawn at every mixing, to tell how much of a gain is due to
            the data. `Pairs`, with as many rounds, is the control that predicts the disagreement.
    """

    sketch: Sketch = CountSketch(100)
    objective: Objective = "parameters"
    balance: NonNegative = 0.1
    control: Permuted | None = None

    @property
    def _estimate(self) -> Estimate:
        return Estimate(self.sketch, self.objective, balance=self.balance, control=self.control)

    def init(self, context: Context) -> State:
        """Return the state of the estimate; algorithms that need symmetric weights allow one matching only."""
        state = self._estimate.init(context)
        state.scratch |= {"rounds": self.count(context, one_way=True), "lazy": context.needs.lazy}
        return state

    def looks(self, t: int, state: State) -> Look | None:
        """Look at every mixing."""
        return self._estimate.wants(t, state)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        Gamma, graph = self._estimate.gram(round, state, network), network.graph
        rounds = []
        for _ in range(state.scratch["rounds"]):
            W = best_pairs(graph, Gamma)
            W = lazy(W) if state.scratch["lazy"] else W
            Gamma = mixed_gram(Gamma, W)
            rounds.append(W)
        return Plan(tuple(rounds), optimized=True)


def best_pairs(graph: Graph, Gamma: FloatArray | sparse.csr_array) -> MixingMatrix:
    """Return the weights of the matching that removes the most of Tr Γ."""
    return metropolis_hastings(heaviest_matching(graph, removed_by_pairs(graph, Gamma)))


def removed_by_pairs(graph: Graph, Gamma: FloatArray | sparse.csr_array) -> FloatArray:
    """Return ½‖x_i − x_j‖² = ½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
    i, j = graph.edge_array.T
    diagonal = Gamma.diagonal()
    removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - Gamma[i, j], 0.0)
    return removed
