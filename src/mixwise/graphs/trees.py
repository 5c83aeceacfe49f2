"""Spanning trees: short ones, chains, and trees that fit the data.

A tree fits the data if the first averages along it are nearly unbiased. An algorithm that relays sums along a tree has,
after h steps, averaged the ball of radius h around each node. With Γ the Gram matrix of the nodes' centered updates,
the bias of such an average is

    ‖mean of the updates in B‖² = 𝟏_Bᵀ Γ 𝟏_B / |B|²,

and the cost of a tree T, with B_i(h) the ball of radius h around node i in T, is

    f(T) = (1 / Tr Γ) Σ_i Σ_{h=1..r} decay^h ‖mean of the updates in B_i(h)‖² + weight · diameter(T).

Without the last term f is at most about Σ_h decay^h. Longer trees mean longer delays: the weight is the bias that one
more hop is worth.

The search swaps edges: it adds an edge of the graph and drops another one of the cycle this closes. Dropping x – y and
adding a – b keeps the distances inside the two parts, and D[i, j] = D[i, a] + 1 + D[b, j] across them, so a swap costs
O(n²) for the distances D (n, n) and O(r n³) for the balls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.graphs.paths import breadth_first, hamiltonian_path, through_all_nodes
from mixwise.seeding import numpy_generator

FloatArray: TypeAlias = npt.NDArray[np.float64]
TreeKind: TypeAlias = Literal["bfs", "chain"]

_ALL_ROOTS = 1000  # up to this many nodes, every root is tried
_ROUNDING = 1e-12  # a smaller gain may be rounding


def spanning_tree(graph: Graph, kind: TreeKind = "bfs") -> Graph:
    """A spanning tree of a connected undirected graph.

    Args:
        graph: the graph.
        kind: "bfs": the breadth-first tree of the root that gives the smallest diameter, at most 1 above that of the
            best spanning tree. (Above 1,000 nodes only one root is tried, the middle of a long path.)
            "chain": a path through all nodes. The search is exact on small graphs only; its error says whether there
            is no such path or none was found.

    >>> spanning_tree(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), "chain").edges
    ((0, 1), (1, 2), (2, 3))
    """
    if kind not in ("bfs", "chain"):
        raise GraphError(f'kind = {kind!r}; a spanning tree is "bfs" or "chain"')
    graph.require_connected("a spanning tree")
    edges = list(pairwise(through_all_nodes(graph))) if kind == "chain" else _short_tree(graph)
    return Graph(graph.n, edges, labels=graph.labels)


# --- trees that fit the data ---
def gram_tree(
    graph: Graph,
    gram: npt.ArrayLike,
    *,
    decay: float = 0.5,
    radius: int = 4,
    diameter_weight: float = 0.01,
    restarts: int = 4,
    seed: int = 0,
) -> Graph:
    """A spanning tree of low `tree_bias`, found by edge swaps from several trees and never worse than any of them.

        minimize  f(T)   over the spanning trees T of the graph (a local minimum)

    Args:
        graph: a connected undirected graph.
        gram: Γ (n, n), the Gram matrix of the nodes' updates; it is centered here.
        decay: the weight of the ball of radius h + 1 relative to that of radius h.
        radius: r, the largest radius that counts.
        diameter_weight: the cost of one hop of the tree's diameter.
        restarts: the number of starting trees: the short one, the tree of complementary neighbors, a chain if one is
            found quickly, then random ones.
        seed: of the random ones.

    It takes 0.03 s on a torus of 16 nodes, 1 to 2 s on 64 nodes with a few neighbors each, and half a minute on a
    complete graph of 64. The search is deterministic, so all processes that know Γ find the same tree.
    """
    graph.require_connected("gram_tree")
    cost = _Cost(_centered(gram, graph.n), decay, radius, diameter_weight)
    if restarts < 1:
        raise GraphError(f"restarts = {restarts}; the search needs at least 1 tree to start from")
    found = [_improved(graph, tree, cost) for tree in _starts(graph, cost.Gamma, restarts, seed)]
    return min(found, key=lambda pair: pair[1])[0]


def tree_bias(
    tree: Graph, gram: npt.ArrayLike, *, decay: float = 0.5, radius: int = 4, diameter_weight: float = 0.01
) -> float:
    """f(T): the bias of the averages over small balls of the tree, plus the cost of its diameter (see `gram_tree`).

    >>> G = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> good, bad = Graph(4, [(0, 2), (2, 1), (1, 3)]), Graph(4, [(0, 1), (1, 2), (2, 3)])
    >>> tree_bias(good, G @ G.T) < tree_bias(bad, G @ G.T)
    True
    """
    tree.require_connected("tree_bias")
    if len(tree.edges) != tree.n - 1:
        raise GraphError(f"{tree} is not a tree; use spanning_tree(graph)")
    cost = _Cost(_centered(gram, tree.n), decay, radius, diameter_weight)
    return float(cost(_distances(tree)[None])[0])


@dataclass(frozen=True)
class _Cost:
    """f for a batch of trees, given by their distances (K, n, n)."""

    Gamma: FloatArray
    decay: float
    radius: int
    diameter_weight: float

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:  # NaN fails every comparison
            raise GraphError(f"decay = {self.decay}; the relative weight of a larger ball lies in (0, 1]")
        if self.radius < 1:
            raise GraphError(f"radius = {self.radius}; balls have a radius of at least 1")
        if not 0 <= self.diameter_weight < np.inf:
            raise GraphError(f"diameter_weight = {self.diameter_weight}; a hop costs a finite number, 0 or more")

    def __call__(self, D: FloatArray) -> FloatArray:
        diameters = D.max(axis=(1, 2))
        total: FloatArray = self.diameter_weight * diameters
        for h in range(1, min(self.radius, int(diameters.max())) + 1):
            balls = (h >= D).astype(np.float64)
            squared = ((balls @ self.Gamma) * balls).sum(axis=2)
            total = total + self.decay**h * (squared / balls.sum(axis=2) ** 2).sum(axis=1)
        return total


def _improved(graph: Graph, tree: Graph, cost: _Cost) -> tuple[Graph, float]:
    """Swap edges, the best of each cycle, until no swap helps; the tree and its cost."""
    D, edges = _distances(tree), set(tree.edges)
    value = float(cost(D[None])[0])
    unchanged, queue = 0, list(graph.edges)
    while unchanged < len(queue):
        a, b = queue.pop(0)
        queue.append((a, b))
        unchanged += 1
        if (a, b) in edges:
            continue
        path = sorted(np.flatnonzero(D[a] + D[b] == D[a, b]).tolist(), key=lambda x: D[a, x])
        drops = list(pairwise(path))
        swapped = np.stack([_after_swap(D, a, b, x, y) for x, y in drops])
        values = cost(swapped)
        best = int(values.argmin())
        if values[best] < value - _ROUNDING:
            x, y = drops[best]
            edges = edges - {(min(x, y), max(x, y))} | {(a, b)}
            D, value, unchanged = swapped[best], float(values[best]), 0
    return Graph(graph.n, sorted(edges), labels=graph.labels), value


def _after_swap(D: FloatArray, a: int, b: int, x: int, y: int) -> FloatArray:
    """The distances after x – y, on the path from a to b with x nearer to a, has been replaced by a – b."""
    with_a = D[x] < D[y]  # the part that keeps a
    across = D[:, a][:, None] + 1 + D[b][None, :]
    new = np.where(with_a[:, None] & ~with_a[None, :], across, D)
    return np.where(~with_a[:, None] & with_a[None, :], across.T, new)


def _starts(graph: Graph, Gamma: FloatArray, restarts: int, seed: int) -> list[Graph]:
    """The trees to start from, each once."""
    i, j = graph.edge_array.T
    trees = [spanning_tree(graph), _lightest(graph, Gamma[i, j])]  # a negative inner product: complementary nodes
    if (path := hamiltonian_path(graph)) is not None:
        trees.append(Graph(graph.n, list(pairwise(path))))
    rng = numpy_generator(seed, "gram_tree")
    while len(trees) < restarts:
        trees.append(_lightest(graph, rng.random(len(i))))
    return list(dict.fromkeys(trees[:restarts]))


def _lightest(graph: Graph, weights: FloatArray) -> Graph:
    """The minimum spanning tree of the edge weights (E,)."""
    from scipy.sparse import csgraph

    rank = np.argsort(np.argsort(weights, kind="stable")) + 1.0  # only the order counts; from 1, as 0 means "no edge"
    i, j = graph.edge_array.T
    tree = csgraph.minimum_spanning_tree(sparse.csr_array((rank, (i, j)), shape=(graph.n, graph.n)))
    return Graph(graph.n, np.stack(tree.nonzero(), axis=1))


def _distances(tree: Graph) -> FloatArray:
    """The hops between all nodes (n, n)."""
    from scipy.sparse import csgraph

    hops: FloatArray = csgraph.shortest_path(tree.adjacency, unweighted=True)
    return hops


def _centered(gram: npt.ArrayLike, n: int) -> FloatArray:
    """(I − J) Γ (I − J) scaled to trace 1, checked."""
    Gamma = np.asarray(gram, dtype=np.float64)
    if Gamma.shape != (n, n):
        raise GraphError(f"the Gram matrix has shape {Gamma.shape}, but the graph has {n} nodes; it must be ({n}, {n})")
    if not np.isfinite(Gamma).all():
        i, j = np.argwhere(~np.isfinite(Gamma))[0]
        raise GraphError(f"Γ[{i}, {j}] = {Gamma[i, j]}; a Gram matrix is finite: look for NaN in node {i}'s update")
    largest = float(np.abs(Gamma).max())
    if largest == 0:
        return Gamma
    Gamma = (Gamma + Gamma.T) / (2 * largest)
    Gamma = Gamma - Gamma.mean(axis=0)
    Gamma = Gamma - Gamma.mean(axis=1, keepdims=True)
    trace = float(np.trace(Gamma))
    return Gamma / trace if trace > 1e-12 * n else np.zeros_like(Gamma)


# --- short trees ---
def _short_tree(graph: Graph) -> IntArray:
    """The edges (n − 1, 2) of the breadth-first tree of smallest diameter."""
    roots = range(graph.n) if graph.n <= _ALL_ROOTS else [_middle(graph)]
    order, parents = min((breadth_first(graph, root) for root in roots), key=lambda tree: _tree_diameter(*tree))
    return np.stack([parents[order[1:]], order[1:]], axis=1)


def _tree_diameter(order: IntArray, parents: IntArray) -> int:
    """The diameter of a rooted tree: the two deepest branches that meet at some node."""
    depth, diameter, parent_of = [0] * len(order), 0, parents.tolist()
    for node in order[:0:-1].tolist():  # from the leaves up
        parent = parent_of[node]
        diameter = max(diameter, depth[parent] + depth[node] + 1)
        depth[parent] = max(depth[parent], depth[node] + 1)
    return diameter


def _middle(graph: Graph) -> int:
    """The middle of a long path, found by walking twice to a farthest node."""
    end = int(breadth_first(graph, 0)[0][-1])
    order, parents = breadth_first(graph, end)
    path = [int(order[-1])]
    while path[-1] != end:
        path.append(int(parents[path[-1]]))
    return path[len(path) // 2]
