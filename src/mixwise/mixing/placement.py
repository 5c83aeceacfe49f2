"""Placement: which node takes which place of a graph, such that the mixing error is low (paper, Appendix C).

A placement is an `order`: node `order[a]` takes place a. With weights W between the places, the problem

    minimize  Tr(Wᵀ Γ[order, order] W) = Σ_ab M[a, b] Γ[order[a], order[b]],   M = W Wᵀ,   over all orders

is a quadratic assignment problem. Swapping two nodes changes the sum by an amount known in O(n), so a local search over
swaps, started from several placements, is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing.gme import GmeProblem
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.solution import scaled_gram
from mixwise.seeding import numpy_generator


@dataclass(frozen=True)
class Placement:
    """Node `order[a]` takes place a; `W` are the weights between places, `objective` is the mixing error."""

    order: tuple[int, ...]
    W: MixingMatrix
    objective: float

    @property
    def graph(self) -> Graph:
        """The graph between the nodes in this placement."""
        return self.W.graph.permuted(self.order)

    @property
    def mixing(self) -> MixingMatrix:
        """The weights between the nodes in this placement."""
        return self.W.permuted(self.order)


def search_placement(gram: npt.ArrayLike, W: MixingMatrix, *, restarts: int = 8, seed: int = 0) -> Placement:
    """A placement of low mixing error for fixed weights W, never worse than leaving the nodes where they are.

        minimize  Tr(Wᵀ Γ[order, order] W)   over all orders (a local minimum)

    Args:
        gram: Γ (n, n), the Gram matrix of the nodes' centered updates.
        W: the weights between the places.
        restarts: the number of placements to start from: the current one, and random ones.
        seed: of the random ones.

    Example:
        >>> from mixwise.graphs import Graph
        >>> from mixwise.mixing import clique_averaging
        >>> G = np.array([[1.0], [1.0], [-1.0], [-1.0]])      # two kinds of data, paired with their own kind
        >>> search_placement(G @ G.T, clique_averaging([(0, 1), (2, 3)])).objective
        0.0
    """
    Gamma, scale = scaled_gram(gram, W.n)
    M = _squared(W)
    orders = [_best_swaps(M, Gamma, start) for start in _starts(W.n, restarts, seed)]
    best = min(orders, key=lambda order: _cost(M, Gamma, order))
    return Placement(tuple(best.tolist()), W, scale * _cost(M, Gamma, best))


def optimize_placement(gram: npt.ArrayLike, graph: GraphLike, *, restarts: int = 8, seed: int = 0) -> Placement:
    """A placement and weights of low mixing error, never worse than GME-opt with the nodes where they are.

        minimize  Tr(Wᵀ Γ[order, order] W)   over all orders and all doubly stochastic W on the graph (a local minimum)

    It alternates between GME-opt and the swap search until neither helps; each can only lower the error.
    """
    graph = as_graph(graph)
    Gamma, scale = scaled_gram(gram, graph.n)
    problem = GmeProblem(graph)
    found = [_alternate(problem, Gamma, start) for start in _starts(graph.n, restarts, seed)]
    best = min(found, key=lambda placement: placement.objective)
    return replace(best, objective=scale * best.objective)


def distinct_placements(graph: GraphLike) -> list[tuple[int, ...]]:
    """One order for each different graph that placing the nodes can give; at most n!, so for small n only."""
    graph = as_graph(graph)
    if graph.n > 8:
        raise MixingError(f"{graph.n} nodes have {graph.n}! orders, too many to list; use search_placement")
    first: dict[Graph, tuple[int, ...]] = {}
    for order in permutations(range(graph.n)):
        first.setdefault(graph.permuted(order), order)
    return list(first.values())


def _starts(n: int, restarts: int, seed: int) -> list[IntArray]:
    if restarts < 1:
        raise MixingError(f"restarts = {restarts}; the search needs at least 1 start")
    rng = numpy_generator(seed, "placement")
    return [np.arange(n), *(rng.permutation(n) for _ in range(restarts - 1))]


def _alternate(problem: GmeProblem, Gamma: FloatArray, order: IntArray) -> Placement:
    best: Placement | None = None
    while True:
        solution = problem.solve(Gamma[np.ix_(order, order)])
        if best is not None and not solution.objective < best.objective * (1 - 1e-9):
            return best
        best = Placement(tuple(order.tolist()), solution.W, solution.objective)
        order = _best_swaps(_squared(solution.W), Gamma, order)


def _squared(W: MixingMatrix) -> FloatArray:
    """M = W Wᵀ (n, n)."""
    dense = W.to_dense()
    return dense @ dense.T


def _best_swaps(M: FloatArray, Gamma: FloatArray, order: IntArray) -> IntArray:
    """Swap the best pair until no swap helps."""
    order = order.copy()
    threshold = -1e-12 * float(np.abs(Gamma).max())  # a smaller gain may be rounding
    while True:
        changes = _swap_changes(M, Gamma[np.ix_(order, order)])
        a, b = np.unravel_index(int(changes.argmin()), changes.shape)
        if changes[a, b] >= threshold:
            return order
        order[[a, b]] = order[[b, a]]


def _swap_changes(M: FloatArray, G: FloatArray) -> FloatArray:
    """The change of Σ M∘G for every swap of two places (n, n); M and G symmetric.

    Swapping a and b changes row and column a by G[b] − G[a] and row and column b by the opposite, outside of {a, b}:

        Δ(a, b) = 2 Σ_{k≠a,b} (M[a,k] − M[b,k]) (G[b,k] − G[a,k]) + (M[a,a] − M[b,b]) (G[b,b] − G[a,a]).
    """
    cross = M @ G
    own = np.diag(cross)
    full = cross + cross.T - own[:, None] - own[None, :]  # Σ over all k
    m, g = np.diag(M), np.diag(G)
    at_a = (m[:, None] - M) * (G - g[:, None])  # the term k = a: (M[a,a] − M[b,a]) (G[b,a] − G[a,a])
    at_b = (M - m[None, :]) * (g[None, :] - G)  # the term k = b: (M[a,b] − M[b,b]) (G[b,b] − G[a,b])
    return 2 * (full - at_a - at_b) + (m[:, None] - m[None, :]) * (g[None, :] - g[:, None])


def _cost(M: FloatArray, Gamma: FloatArray, order: IntArray) -> float:
    """Σ_ab M[a, b] Γ[order[a], order[b]]."""
    return max(0.0, float((M * Gamma[np.ix_(order, order)]).sum()))
