"""Walks over a graph: breadth-first trees, two-colorings, and Hamiltonian paths (heuristic, then exact)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.seeding import numpy_generator

_TRIES = 20  # random searches before the exact one
_STEPS = 200_000  # path extensions of the exact search


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


def through_all_nodes(graph: Graph) -> list[int]:
    """A Hamiltonian path of a connected graph; the error says whether there is none or none was found."""
    near = neighbor_lists(graph)
    path, reason = None, _obstruction(graph)
    if not reason and (path := hamiltonian_path(graph)) is None:
        path, exhausted = _exact_path(near)
        reason = "a search of all paths found none" if exhausted else ""
    if path is None:
        verdict = f"has no chain through all nodes: {reason}" if reason else "may have a chain, but none was found"
        raise GraphError(f'{graph} {verdict}; use spanning_tree(graph, "bfs")')
    return path


def neighbor_lists(graph: Graph) -> list[list[int]]:
    """The neighbors of each node, ascending."""
    return [list(graph.neighbors(i)) for i in range(graph.n)]


def hamiltonian_path(graph: Graph) -> list[int] | None:
    """A path through all nodes, if a short search finds one.

    Extend to the neighbor with the fewest free neighbors; at a dead end, reverse the tail of the path (Pósa): with an
    edge e ~ a, … a – b … e becomes … a – e … b, which ends at another node.
    """
    near = neighbor_lists(graph)
    for attempt in range(_TRIES):
        draws = numpy_generator(0, "hamiltonian_path", attempt)
        path = [0 if attempt == 0 else int(draws.integers(graph.n))]
        free = set(range(graph.n)) - set(path)
        for _ in range(20 * graph.n):
            if not free:
                break
            ends = near[path[-1]]
            if onward := [v for v in ends if v in free]:
                path.append(min(onward, key=lambda v: (_free_neighbors(near, free, v), v)))
                free.discard(path[-1])
                continue
            a = path.index(ends[int(draws.integers(len(ends)))])
            path[a + 1 :] = path[:a:-1]
            if draws.random() < 0.1:
                path.reverse()  # continue at the other end
        if not free:
            return path
    return None


def _obstruction(graph: Graph) -> str:
    """An obvious reason why there is no Hamiltonian path, or ""."""
    leaves = graph.degrees.count(1)
    if leaves > 2:
        return f"{leaves} nodes have one neighbor only"
    sides = two_coloring(graph)
    if sides is not None and abs(graph.n - 2 * sides.sum()) > 1:  # a path alternates between the sides
        fewer, more = sorted([sides.sum(), (~sides).sum()])
        return f"all edges run between {fewer} and {more} nodes"
    return ""


def _exact_path(near: list[list[int]]) -> tuple[list[int] | None, bool]:
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
