"""Matchings in turn, from an edge coloring of the graph: gossip in pairs that needs no coordination and no data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from mixwise.errors import MixingError
from mixwise.graphs import Graph, edge_coloring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.parts import Count, part
from mixwise.policies.fixed import InTurn
from mixwise.protocols import Context, Plan, Policy

_MOST_NODES = 256  # for which the order of the colors is optimized, on n × n arrays
_MOST_ORDERS = 24  # that are tried one by one
_ALWAYS_ALLOWED = 64  # matchings per mixing, however few the nodes


@dataclass(frozen=True)
class InPairs(Policy):
    """`rounds` matchings at every mixing, one after the other, in which the nodes of a pair average."""

    rounds: Count | None = None

    def count(self, context: Context, *, one_way: bool = False) -> int:
        """Return how many matchings a mixing has: `rounds`, or as many as fit.

        Where weights must be symmetric, the matchings run forth and back, and one more may be needed. Those that are
        chosen one after the other run one way only: then one is symmetric, and several are rejected.
        """
        if self.rounds is not None:
            check_rounds(self.rounds, context.graph)
        fitting = rounds_that_fit(context.graph) if self.rounds is None else self.rounds
        if not context.needs.symmetric:
            return fitting
        if not one_way:
            return fitting // 2 + 1 if self.rounds is None else fitting
        if fitting != 1:
            raise MixingError(
                "the algorithm needs symmetric weights, and several matchings in a row are not; use rounds = 1, "
                "or policy: pairs, whose rounds run forth and back"
            )
        return 1


@part(
    "edge-coloring", title="the matchings of an edge coloring in turn",
    does="the colors of an edge coloring in turn, `rounds` of them at every mixing; no sketches",
)  # fmt: skip
@dataclass(frozen=True)
class EdgeColoring(InPairs, InTurn):
    """At every mixing, the next `rounds` matchings of an edge coloring; the nodes of a pair average.

    A mixing continues where the last one stopped, so that all edges are used equally often. Two rounds on an even ring
    are even-odd averaging; on a hypercube (a 4 × 4 torus is one) all colors together are an exact average.
    For algorithms that need symmetric weights (D², EXTRA) the rounds run forth and back, M₁ M₂ M₁, by default at most
    one more than fit. Matchings are projections, so such a product has no negative eigenvalues.

    Args:
        rounds: matchings per mixing, at most n or 64. By default as many as the bytes of ordinary gossip allow, where
            every node sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up.
    """

    def plans(self, context: Context) -> Sequence[Plan]:
        """Color the edges, and return the rounds of each mixing until the first color is first again."""
        r = self.count(context)
        colors = tuple(map(metropolis_hastings, fastest_order(edge_coloring(context.graph) or (context.graph,))))
        starts = range(0, math.lcm(r, len(colors)), r)
        in_turn = [tuple(colors[(start + s) % len(colors)] for s in range(r)) for start in starts]
        return [Plan(palindrome(rounds) if context.needs.symmetric else rounds) for rounds in in_turn]


def rounds_that_fit(graph: Graph) -> int:
    """Return how many matchings send no more than one round of ordinary gossip, but at most log₂ n."""
    graph.require_undirected("a matching")
    degree = 2 * len(graph.edge_array) // max(graph.n, 1)
    return max(1, min(degree, math.ceil(math.log2(max(graph.n, 2)))))


def most_rounds(graph: Graph) -> int:
    """Return how many matchings a mixing may have: n, in which a node sends more than to all others, or 64."""
    return max(graph.n, _ALWAYS_ALLOWED)


def check_rounds(rounds: int, graph: Graph) -> None:
    """Raise `MixingError` if a mixing has more matchings than can be of use."""
    if rounds > (most := most_rounds(graph)):
        raise MixingError(
            f"rounds = {rounds}; a mixing has at most {most} matchings here: in n rounds, every node could send its "
            f"row to all {graph.n}; use fewer rounds, or policy: full-averaging"
        )


def palindrome(rounds: tuple[MixingMatrix, ...]) -> tuple[MixingMatrix, ...]:
    """Return M₁ … M_r … M₁, whose product is symmetric."""
    return rounds + rounds[-2::-1]


def fastest_order(matchings: Sequence[Graph]) -> tuple[Graph, ...]:
    """Return the matchings in the order with the least steady disagreement: the best, or a greedy one if many."""
    n = matchings[0].n if matchings else 0
    if n > _MOST_NODES or len(matchings) < 3:
        return tuple(matchings)
    colors = [metropolis_hastings(matching) for matching in matchings]
    if math.factorial(len(matchings) - 1) <= _MOST_ORDERS:  # orders that differ in where they begin are the same
        orders = [(0, *rest) for rest in permutations(range(1, len(matchings)))]
    else:
        orders = [tuple(range(len(matchings))), _greedy_order(colors)]
    best = min(orders, key=lambda order: disagreement_left([(colors[c],) for c in order] * 3, len(colors)))
    return tuple(matchings[c] for c in best)


def disagreement_left(mixings: Sequence[tuple[MixingMatrix, ...]], counted: int) -> float:
    """Return the mean of Tr (I − J)Γ after the last mixings, where each begins with Γ ← Γ + I: noise at every node."""
    Gamma, left = np.zeros((mixings[0][0].n,) * 2), 0.0
    for t, rounds in enumerate(mixings):
        Gamma += np.eye(len(Gamma))
        for W in rounds:
            Gamma = mixed_gram(Gamma, W)
        if t >= len(mixings) - counted:
            left += np.trace(Gamma) - Gamma.mean() * len(Gamma)
    return _round_off(left / counted)


def mixed_gram(Gamma: FloatArray, W: MixingMatrix) -> FloatArray:
    """Return WᵀΓW, without BLAS: all processes must find the same pairs."""
    mixed: FloatArray = W.incoming @ (W.incoming @ Gamma).T
    return mixed


def _round_off(value: float) -> float:
    """Return the value with ten digits, so that the rounding of a processor does not decide between equals."""
    return float(f"{value:.9e}")


def _greedy_order(colors: Sequence[MixingMatrix]) -> tuple[int, ...]:
    """At every place, the matching that leaves the least."""
    Gamma, order, left = np.zeros((colors[0].n,) * 2), [], list(range(len(colors)))
    while left:
        Gamma += np.eye(len(Gamma))
        best = min(left, key=lambda c: _round_off(np.trace(colors[c].sparse @ Gamma)))  # M = MᵀM: Tr MᵀΓM = Tr MΓ
        Gamma = mixed_gram(Gamma, colors[best])
        left.remove(best)
        order.append(best)
    return tuple(order)
