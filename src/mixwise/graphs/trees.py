"""Spanning trees, short ones and chains, and the searches over a graph that find them."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.seeding import numpy_generator

TreeKind: TypeAlias = Literal["bfs", "chain"]

_ALL_ROOTS = 1000  # up to this many nodes, every root is tried
_TRIES = 20  # random searches for a chain before the exact one
_STEPS = 200_000  # path extensions of the exact search


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
    edges = list(pairwise(_chain(graph))) if kind == "chain" else _short_tree(graph)
    return Graph(graph.n, edges, labels=graph.labels)


def breadth_first(graph: Graph, root: int) -> tuple[IntArray, IntArray]:
    """The nodes in breadth-first order from `root` (n,), and the parent of every node (n,); the root is its own."""
    from scipy.sparse import csgraph  # imports all of scipy.linalg

    order, parents = csgraph.breadth_first_order(graph.adjacency, root)
    parents[root] = root
    return order.astype(np.int64), parents.astype(np.int64)


def two_coloring(graph: Graph) -> npt.NDArray[np.bool_] | None:
    """A side for every node (n,) such that all edges join different sides; None unless the graph is bipartite.

    The double cover has nodes (v, 0) and (v, 1) and edges (u, 0) – (v, 1); it connects (v, 0) with (v, 1) if and only
    if v is connected to an odd cycle.
    """
    from scipy.sparse import csgraph

    cover = sparse.block_array([[None, graph.adjacency], [graph.adjacency, None]])
    names = csgraph.connected_components(cover, directed=False)[1].reshape(2, graph.n)
    return names[0] > names[1] if (names[0] != names[1]).all() else None


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


# --- chains: Hamiltonian paths ---
def _chain(graph: Graph) -> list[int]:
    """A path through all nodes of a connected graph; the error says whether there is none or none was found."""
    near = [list(graph.neighbors(i)) for i in range(graph.n)]
    path, reason = None, _obstruction(graph)
    if not reason and (path := _quick_chain(near)) is None:
        path, exhausted = _exact_chain(near)
        reason = "a search of all paths found none" if exhausted else ""
    if path is None:
        verdict = f"has no chain through all nodes: {reason}" if reason else "may have a chain, but none was found"
        raise GraphError(f'{graph} {verdict}; use spanning_tree(graph, "bfs")')
    return path


def _obstruction(graph: Graph) -> str:
    """An obvious reason why there is no chain, or ""."""
    leaves = graph.degrees.count(1)
    if leaves > 2:
        return f"{leaves} nodes have one neighbor only"
    sides = two_coloring(graph)
    if sides is not None and abs(graph.n - 2 * sides.sum()) > 1:  # a path alternates between the sides
        fewer, more = sorted([sides.sum(), (~sides).sum()])
        return f"all edges run between {fewer} and {more} nodes"
    return ""


def _quick_chain(near: list[list[int]]) -> list[int] | None:
    """A path through all nodes, if a short search finds one.

    Extend to the neighbor with the fewest free neighbors; at a dead end, reverse the tail of the path (Pósa): with an
    edge e ~ a, … a – b … e becomes … a – e … b, which ends at another node.
    """
    n = len(near)
    for attempt in range(_TRIES):
        draws = numpy_generator(0, "hamiltonian_path", attempt)
        path = [0 if attempt == 0 else int(draws.integers(n))]
        free = set(range(n)) - set(path)
        for _ in range(20 * n + 1):
            if not free:
                return path
            ends = near[path[-1]]
            if onward := [v for v in ends if v in free]:
                path.append(min(onward, key=lambda v: (_free_neighbors(near, free, v), v)))
                free.discard(path[-1])
                continue
            a = path.index(ends[int(draws.integers(len(ends)))])
            path[a + 1 :] = path[:a:-1]
            if draws.random() < 0.1:
                path.reverse()  # continue at the other end
    return None


def _exact_chain(near: list[list[int]]) -> tuple[list[int] | None, bool]:
    """Depth-first search over all paths: a path, or None and whether all paths were tried."""
    steps = 0
    for start in sorted(range(len(near)), key=lambda u: len(near[u])):
        path, free = [start], set(range(len(near))) - {start}
        choices = [_extensions(near, free, start)]
        while choices:
            if not free:
                return path, True
            if not choices[-1]:
                choices.pop()
                free.add(path.pop())
                continue
            steps += 1
            if steps > _STEPS:
                return None, False
            path.append(choices[-1].pop())
            free.discard(path[-1])
            choices.append(_extensions(near, free, path[-1]))
    return None, True


def _extensions(near: list[list[int]], free: set[int], end: int) -> list[int]:
    """Where a path may continue, best last; nowhere if a free node can no longer be reached."""
    if any(not any(w in free or w == end for w in near[v]) for v in free):
        return []
    return sorted((v for v in near[end] if v in free), key=lambda v: -_free_neighbors(near, free, v))


def _free_neighbors(near: list[list[int]], free: set[int], v: int) -> int:
    """How many neighbors of v are free."""
    return sum(w in free for w in near[v])
