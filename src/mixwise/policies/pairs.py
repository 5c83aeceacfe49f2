"""Pairs in an order that follows from the graph alone: gossip in matchings that needs no data and no messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from mixwise.graphs import Graph, heaviest_matching
from mixwise.mixing import MixingMatrix, exact_average, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.parts import Count, part
from mixwise.policies.edge_coloring import matchings_of, palindrome
from mixwise.protocols import Context, Network, Plan, Policy, Round, State

_PLANNED = 64  # mixings, the second half of which is then repeated
_MANY = 4096  # nodes; with more, a quarter of that is planned: a matching takes 80 bytes per node
_MOST_NODES = 256  # for which all of Γ is kept


@part(
    "pairs", title="pairs of neighbors in an order planned for the graph",
    does="pairs of neighbors in an order planned for the graph, `rounds` matchings at every mixing; no sketches",
)  # fmt: skip
@dataclass(frozen=True)
class Pairs(Policy):
    """At every mixing, `rounds` matchings in an order that suits the graph; all nodes know it without any message.

    The order is that of `HeterogeneityAwareMatchings` for nodes whose data is unknown: each matching removes the most
    of a *modeled* Γ, to which every mixing adds I, noise of its own at every node, and which becomes WᵀΓW after
    every round. On an even ring this is even-odd averaging. 64 mixings are planned (16 if n > 4,096), when they are
    needed; then the second half of them is repeated. With more than 256 nodes Γ is kept on the edges only, so that
    planning is linear in their number.
    Where the rounds suffice for an exact average (`mixing.exact_average`: n/2 on an even ring), they are one, with
    pairs that do not meet half way.

    For algorithms that need symmetric weights (D², EXTRA) the rounds run forth and back, M₁ M₂ M₁, by default at most
    one more than fit. Matchings are projections, so such a product has no negative eigenvalues.

    Args:
        rounds: matchings per mixing. By default as many as fit into the bytes of ordinary gossip, where every node
            sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up.
    """

    rounds: Count | None = None

    def init(self, context: Context) -> State:
        """Plan nothing yet."""
        schedule = _schedule(context.graph, matchings_of(self.rounds, context), context.needs.symmetric)
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
        average = exact_average(graph) if 2**rounds >= graph.n and not palindromes else None
        self.average = average if average and len(average) <= rounds else None
        self._kept = None if graph.n <= _MOST_NODES else graph.adjacency + sparse.eye_array(graph.n)
        self._Gamma = sparse.csr_array((graph.n, graph.n))

    def rounds_of(self, t: int) -> tuple[MixingMatrix, ...]:
        """Return the matrices of mixing t."""
        if self.average is not None:
            return self.average
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
            W = metropolis_hastings(heaviest_matching(self.graph, self._removed()))
            self._mix(W)
            rounds.append(W)
        if not self.palindromes:
            return tuple(rounds)
        for W in rounds[-2::-1]:
            self._mix(W)
        return palindrome(tuple(rounds))

    def _removed(self) -> FloatArray:
        """½ (Γ_ii + Γ_jj − 2 Γ_ij) for each edge."""
        i, j = self.graph.edge_array.T
        diagonal = self._Gamma.diagonal()
        removed: FloatArray = np.maximum(0.5 * (diagonal[i] + diagonal[j]) - self._Gamma[i, j], 0.0)
        return removed

    def _mix(self, W: MixingMatrix) -> None:
        """Γ ← WᵀΓW; of large graphs, on the edges and the diagonal."""
        Gamma = W.incoming @ self._Gamma @ W.sparse
        self._Gamma = Gamma if self._kept is None else Gamma.multiply(self._kept).tocsr()


@lru_cache(maxsize=8)  # the runs of an experiment share it
def _schedule(graph: Graph, rounds: int, palindromes: bool) -> Schedule:
    return Schedule(graph, rounds, palindromes)
