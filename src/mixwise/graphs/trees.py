"""Spanning trees: short ones, chains, and trees that fit the data.

A tree fits the data if what is averaged first along it is already close to unbiased. An algorithm that relays sums
along a tree averages, h steps after it started, the ball of radius h around each node; the rest comes later. With Γ the
Gram matrix of the nodes' centered updates, the bias of such an average is

    ‖mean of the updates in B‖² = 𝟏_Bᵀ Γ 𝟏_B / |B|²,

and a tree T, with B_i(h) the ball of radius h around node i in T, is judged by

    f(T) = (1 / Tr Γ) Σ_i Σ_{h=1..r} decay^h ‖mean of the updates in B_i(h)‖² + weight · diameter(T).

Without the last term f is at most about Σ_h decay^h. A longer tree means longer delays: the weight tells how much bias
one more hop is worth.

The search swaps edges: add an edge of the graph, drop another one of the cycle that it closes. Dropping x – y and
adding a – b leaves distances inside the two parts as they are, and D[i, j] = D[i, a] + 1 + D[b, j] across them, so a
swap costs O(n²) for the distances and O(r n³) for the balls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph
from mixwise.graphs.matchings import need_undirected
from mixwise.graphs.paths import breadth_first, hamiltonian_path, neighbor_lists, through_all_nodes
from mixwise.seeding import numpy_generator

FloatArray = npt.NDArray[np.float64]
TreeKind: TypeAlias = Literal["bfs", "chain"]

_ALL_ROOTS = 1000  # up to this many nodes every root is tried
_HELPS = 1e-12  # a smaller gain may be rounding


def spanning_tree(graph: Graph, kind: TreeKind = "bfs") -> Graph:
    """A tree of n − 1 edges of a connected undirected graph that reaches all its nodes.

    Args:
        graph: the graph.
        kind: "bfs": shortest paths from a root, the root chosen for the smallest diameter of the tree, which is then at
            most 1 above that of the best spanning tree. (Above 1,000 nodes only one root is tried, the middle of
            a long path.)
            "chain": a path through all nodes, for which a search is made that is exact on small graphs only; an
            error says whether there is none or none was found.

    >>> spanning_tree(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), "chain").edges
    ((0, 1), (1, 2), (2, 3))
    """
    if kind not in ("bfs", "chain"):
        raise GraphError(f'kind = {kind!r}; a spanning tree is "bfs" or "chain"')
    need_connected(graph, "a spanning tree")
    edges = list(pairwise(through_all_nodes(graph))) if kind == "chain" else _short_tree(neighbor_lists(graph))
    return Graph(graph.n, edges, labels=graph.labels)


def need_connected(graph: Graph, what: str) -> None:
    """An error unless the graph is undirected and in one piece."""
    need_undirected(graph, what)
    if not graph.is_connected:
        raise GraphError(
            f"the graph has {len(graph.components)} components, but {what} needs a connected one; "
            f"add edges, or take one component: graph.subgraph(max(graph.components, key=len))"
        )


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
    """A spanning tree of low `tree_bias`, found by edge swaps from several trees; never worse than any of them.

    Args:
        graph: a connected undirected graph.
        gram: Γ (n, n), the Gram matrix of the nodes' updates; it is centered here.
        decay: how much less the average over a ball of radius h + 1 counts than that over radius h.
        radius: the largest ball that counts.
        diameter_weight: what one hop of the tree's diameter costs.
        restarts: how many trees to start from: the short one, the tree of complementary neighbors, a chain if one is
            found easily, then random ones.
        seed: names the random ones.

    Time: 0.03 s on a torus of 16, 1 to 2 s on 64 nodes with a few neighbors each, half a minute on a complete graph of
    64; every step of the search is deterministic, so all processes that know Γ find the same tree.
    """
    need_connected(graph, "gram_tree")
    judge = _Judge(_centered(gram, graph.n), decay, radius, diameter_weight)
    if restarts < 1:
        raise GraphError(f"restarts = {restarts}; the search needs at least 1 tree to start from")
    found = [_improved(graph, tree, judge) for tree in _starts(graph, judge.Gamma, restarts, seed)]
    return min(found, key=lambda pair: pair[1])[0]


def tree_bias(
    tree: Graph, gram: npt.ArrayLike, *, decay: float = 0.5, radius: int = 4, diameter_weight: float = 0.01
) -> float:
    """f(T) of the file's head: how biased the averages over small balls of the tree are, plus its diameter's cost.

    >>> G = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> good, bad = Graph(4, [(0, 2), (2, 1), (1, 3)]), Graph(4, [(0, 1), (1, 2), (2, 3)])
    >>> tree_bias(good, G @ G.T) < tree_bias(bad, G @ G.T)
    True
    """
    need_connected(tree, "tree_bias")
    if len(tree.edges) != tree.n - 1:
        raise GraphError(f"{tree} is not a tree; take spanning_tree(graph) of it")
    judge = _Judge(_centered(gram, tree.n), decay, radius, diameter_weight)
    return float(judge(_distances(tree)[None])[0])


@dataclass(frozen=True)
class _Judge:
    """f for a batch of trees, given by their distances (K, n, n)."""

    Gamma: FloatArray
    decay: float
    radius: int
    diameter_weight: float

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:  # NaN fails every comparison
            raise GraphError(f"decay = {self.decay}; what a larger ball counts less lies in (0, 1]")
        if self.radius < 1:
            raise GraphError(f"radius = {self.radius}; balls have a radius of at least 1")
        if not 0 <= self.diameter_weight < np.inf:
            raise GraphError(f"diameter_weight = {self.diameter_weight}; a hop costs a finite number, 0 or more")

    def __call__(self, D: FloatArray) -> FloatArray:
        longest = D.max(axis=(1, 2))
        total = self.diameter_weight * longest
        for h in range(1, min(self.radius, int(longest.max())) + 1):
            balls = (h >= D).astype(np.float64)
            squared = ((balls @ self.Gamma) * balls).sum(axis=2)
            total = total + self.decay**h * (squared / balls.sum(axis=2) ** 2).sum(axis=1)
        result: FloatArray = total
        return result


def _improved(graph: Graph, tree: Graph, judge: _Judge) -> tuple[Graph, float]:
    """Swap edges, the best one of each cycle, until no swap helps."""
    D, edges = _distances(tree), set(tree.edges)
    value = float(judge(D[None])[0])
    unchanged, queue = 0, list(graph.edges)
    while unchanged < len(queue):
        a, b = queue.pop(0)
        queue.append((a, b))
        unchanged += 1
        if (a, b) in edges:
            continue
        path = [int(x) for x in np.flatnonzero(D[a] + D[b] == D[a, b])]
        path.sort(key=lambda x: D[a, x])
        drops = list(pairwise(path))
        swapped = np.stack([_after_swap(D, a, b, x, y) for x, y in drops])
        values = judge(swapped)
        best = int(values.argmin())
        if values[best] < value - _HELPS:
            x, y = drops[best]
            edges = edges - {(min(x, y), max(x, y))} | {(a, b)}
            D, value, unchanged = swapped[best], float(values[best]), 0
    return Graph(graph.n, sorted(edges), labels=graph.labels), value


def _after_swap(D: FloatArray, a: int, b: int, x: int, y: int) -> FloatArray:
    """Distances after x – y, on the path from a to b with x nearer to a, was replaced by a – b."""
    with_a = D[x] < D[y]  # the part that keeps a
    across = D[:, a][:, None] + 1 + D[b][None, :]
    new = np.where(with_a[:, None] & ~with_a[None, :], across, D)
    return np.where(~with_a[:, None] & with_a[None, :], across.T, new)


def _starts(graph: Graph, Gamma: FloatArray, restarts: int, seed: int) -> list[Graph]:
    i, j = graph.edge_array.T
    trees = [
        spanning_tree(graph),
        _lightest(graph, Gamma[i, j]),
    ]  # a negative inner product: they complement each other
    if (path := hamiltonian_path(graph)) is not None:
        trees.append(Graph(graph.n, list(pairwise(path))))
    rng = numpy_generator(seed, "gram_tree")
    while len(trees) < restarts:
        trees.append(_lightest(graph, rng.random(len(i))))
    return list(dict.fromkeys(trees[:restarts]))


def _lightest(graph: Graph, weights: FloatArray) -> Graph:
    """The spanning tree of least total weight."""
    from scipy.sparse import csgraph

    place = np.argsort(np.argsort(weights, kind="stable")) + 1.0  # its order decides; from 1, as 0 means "no edge"
    i, j = graph.edge_array.T
    tree = csgraph.minimum_spanning_tree(sparse.csr_array((place, (i, j)), shape=(graph.n, graph.n)))
    return Graph(graph.n, np.argwhere(tree.toarray()))


def _distances(tree: Graph) -> FloatArray:
    from scipy.sparse import csgraph

    hops: FloatArray = csgraph.shortest_path(tree.adjacency, unweighted=True)
    return hops


def _centered(gram: npt.ArrayLike, n: int) -> FloatArray:
    """(I − J) Γ (I − J) / Tr, checked."""
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
def _short_tree(near: list[list[int]]) -> list[tuple[int, int]]:
    n = len(near)
    roots = range(n) if n <= _ALL_ROOTS else [_middle(near)]
    parents = min((breadth_first(near, root) for root in roots), key=_tree_diameter)
    return [(parent, node) for node, parent in parents.items() if parent != node]


def _tree_diameter(parents: dict[int, int]) -> int:
    """From the leaves up: the two deepest branches at some node make the longest path."""
    depth = dict.fromkeys(parents, 0)
    longest = 0
    for node in reversed(parents):
        parent = parents[node]
        if parent != node:
            longest = max(longest, depth[parent] + depth[node] + 1)
            depth[parent] = max(depth[parent], depth[node] + 1)
    return longest


def _middle(near: list[list[int]]) -> int:
    """The middle of a path found by walking twice to a farthest node."""
    end = list(breadth_first(near, 0))[-1]
    parents = breadth_first(near, end)
    path = [list(parents)[-1]]
    while parents[path[-1]] != path[-1]:
        path.append(parents[path[-1]])
    return path[len(path) // 2]
