"""Paths through all nodes of a graph (Hamiltonian paths): a quick search, an exact one for small graphs."""

from __future__ import annotations

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph
from mixwise.seeding import numpy_generator

_TRIES = 20  # random searches, before the exact one
_STEPS = 200_000  # extensions of a path in the exact search


def through_all_nodes(graph: Graph) -> list[int]:
    """A path through all nodes of a connected graph; an error says whether there is none or none was found."""
    near = neighbor_lists(graph)
    reason = _none_because(near)
    path = None if reason else hamiltonian_path(graph)
    if path is None and not reason:
        path, exhausted = _exact_path(near)
        reason = "a search of all paths found none" if exhausted else ""
    if path is None:
        verdict = (
            f"has no chain through all nodes: {reason}" if reason else "may have a chain, but the search found none"
        )
        raise GraphError(f'{graph} {verdict}; take spanning_tree(graph, "bfs")')
    return path


def neighbor_lists(graph: Graph) -> list[list[int]]:
    """The neighbors of each node, ascending."""
    return [list(graph.neighbors(i)) for i in range(graph.n)]


def breadth_first(near: list[list[int]], root: int) -> dict[int, int]:
    """The parent of every node, in the order in which they are reached; the root is its own."""
    parents = {root: root}
    queue = [root]
    for u in queue:
        for v in near[u]:
            if v not in parents:
                parents[v] = u
                queue.append(v)
    return parents


def hamiltonian_path(graph: Graph) -> list[int] | None:
    """A path through all nodes, if a short search finds one.

    Extend to the neighbor with the fewest free neighbors; at a dead end, turn the tail of the path around (Pósa): of
    … a – b … e with an edge e ~ a, make … a – e … b, which ends elsewhere.
    """
    near = neighbor_lists(graph)
    for attempt in range(_TRIES):
        draws = numpy_generator(0, "hamiltonian_path", attempt)
        path = [0 if attempt == 0 else int(draws.integers(graph.n))]
        free = set(range(graph.n)) - set(path)
        for _ in range(20 * graph.n):
            if not free:
                return path
            ways = [v for v in near[path[-1]] if v in free]
            if ways:
                path.append(min(ways, key=lambda v: (sum(w in free for w in near[v]), v)))
                free.discard(path[-1])
                continue
            ends = near[path[-1]]
            a = path.index(ends[int(draws.integers(len(ends)))])
            path[a + 1 :] = path[:a:-1]
            if draws.random() < 0.1:
                path.reverse()  # go on at the other end
        if not free:
            return path
    return None


def _none_because(near: list[list[int]]) -> str:
    """A reason that is seen at once, or nothing."""
    leaves = sum(len(neighbors) == 1 for neighbors in near)
    if leaves > 2:
        return f"{leaves} nodes have one neighbor only"
    side: dict[int, int] = {}
    for node, parent in breadth_first(near, 0).items():
        side[node] = 0 if node == parent else 1 - side[parent]
    if all(side[u] != side[v] for u in range(len(near)) for v in near[u]):
        sizes = sorted((sum(side.values()), len(near) - sum(side.values())))
        if sizes[1] - sizes[0] > 1:  # a path goes from side to side
            return f"all edges run between {sizes[0]} and {sizes[1]} nodes"
    return ""


def _exact_path(near: list[list[int]]) -> tuple[list[int] | None, bool]:
    """Depth first over all paths: a path, or None and whether all paths were tried."""
    steps = 0
    for start in sorted(range(len(near)), key=lambda u: len(near[u])):
        path, free = [start], set(range(len(near))) - {start}
        ways = [_ways(near, free, start)]
        while ways:
            if not free:
                return path, True
            if not ways[-1]:
                ways.pop()
                free.add(path.pop())
                continue
            steps += 1
            if steps > _STEPS:
                return None, False
            path.append(ways[-1].pop())
            free.discard(path[-1])
            ways.append(_ways(near, free, path[-1]))
    return None, True


def _ways(near: list[list[int]], free: set[int], end: int) -> list[int]:
    """Where a path may go on, best last; nowhere if that would strand two free nodes."""
    stranded = [v for v in free if not any(w in free or w == end for w in near[v])]
    if stranded:
        return []
    return sorted((v for v in near[end] if v in free), key=lambda v: -sum(w in free for w in near[v]))
