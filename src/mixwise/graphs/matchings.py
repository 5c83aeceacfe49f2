"""Matchings: sets of edges in which no two meet, so that every node talks to at most one other at a time.

Legend: Δ the largest degree. `at[u]` maps each color at node u to the neighbor that the edge of this color leads to.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph
from mixwise.seeding import numpy_generator

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
_Colors: TypeAlias = list[dict[int, int]]
_WEIGHT_STEPS = 2.0**40  # of the heaviest edge
_BLOSSOM_LIMIT = 20_000  # nodes × edges


def random_matching(graph: Graph, seed: int = 0, t: int = 0) -> Graph:
    """A random maximal matching: edges in random order, each one taken if both its ends are still free.

    The same seed and t give the same matching in every process. No edge of the graph can be added to it.
    """
    need_undirected(graph, "random_matching")
    return _taken_in_order(graph, numpy_generator(seed, "random_matching", t).permutation(len(graph.edge_array)))


def _taken_in_order(graph: Graph, order: IntArray) -> Graph:
    """The matching that takes these edges one after the other, each if both its ends are still free."""
    free = [True] * graph.n
    taken: list[tuple[int, int]] = []
    for i, j in graph.edge_array[order].tolist():
        if free[i] and free[j]:
            free[i] = free[j] = False
            taken.append((i, j))
    return Graph(graph.n, taken, labels=graph.labels)


def heaviest_matching(graph: Graph, weights: FloatArray) -> Graph:
    """A matching with a large sum of weights, one weight (0 or larger) per edge in the order of `graph.edges`.

    The heaviest one where nodes × edges are at most 20,000 (Edmonds' blossom algorithm, exact; 0.9 ms for 16 nodes on
    a ring or torus, 10 ms for 64). On larger graphs heavy edges first, each one taken if both its ends are free: at
    least half of the best sum, and 92 to 94 % of it on tori with random weights. Edges of weight 0 are left out.

    >>> heaviest_matching(Graph(4, [(0, 1), (1, 2), (2, 3)]), np.array([1.0, 3.0, 1.0])).edges
    ((1, 2),)
    """
    need_undirected(graph, "heaviest_matching")
    if len(weights) != len(graph.edge_array) or not np.all(weights >= 0):
        raise GraphError(
            f"{len(weights)} weights for {len(graph.edge_array)} edges; one number per edge, 0 or larger and not NaN"
        )
    # Whole numbers, so that no rounding decides in the course of the algorithm.
    steps = np.rint(weights / max(float(weights.max(initial=0.0)), 1e-300) * _WEIGHT_STEPS).astype(np.int64)
    if graph.n * len(steps) > _BLOSSOM_LIMIT:
        return _taken_in_order(graph, np.argsort(-steps, kind="stable")[: np.count_nonzero(steps)])
    import networkx as nx  # here: it is slow to import, and little else needs it

    weighted: nx.Graph[int] = nx.Graph()
    edges = zip(graph.edge_array.tolist(), steps.tolist(), strict=True)
    weighted.add_weighted_edges_from((i, j, w) for (i, j), w in edges if w > 0)
    return Graph(graph.n, sorted(nx.max_weight_matching(weighted)), labels=graph.labels)


def matching_decomposition(graph: Graph) -> tuple[Graph, ...]:
    """The edges split into matchings: Δ of them on a bipartite graph (the least possible), else at most Δ + 1.

    A proper coloring of the edges, one color per matching. Bipartite graphs: each new edge frees a color by swapping
    two colors along an alternating path (König). Others: fans and alternating paths (Misra and Gries, 1992).

    >>> [matching.edges for matching in matching_decomposition(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]))]
    [((0, 1), (2, 3)), ((0, 3), (1, 2))]
    """
    need_undirected(graph, "matching_decomposition")
    at: _Colors = [{} for _ in range(graph.n)]
    color_edge = _color_in_bipartite if _is_bipartite(graph) else _color_by_fan
    for u, v in graph.edges:
        color_edge(at, u, v)
    matchings: dict[int, list[tuple[int, int]]] = {}
    for u, colors in enumerate(at):
        for color, v in colors.items():
            if u < v:
                matchings.setdefault(color, []).append((u, v))
    return tuple(Graph(graph.n, matchings[color], labels=graph.labels) for color in sorted(matchings))


def need_undirected(graph: Graph, what: str) -> None:
    """An error if the edges have directions."""
    if graph.directed:
        raise GraphError(
            f"{what} needs an undirected graph, got {graph}; drop the directions: Graph(graph.n, graph.edges)"
        )


# --- coloring edges ---
def _color_in_bipartite(at: _Colors, u: int, v: int) -> None:
    c, d = _free(at[u]), _free(at[v])
    # The path c, d, c, … from v comes to the side of u by color c only, which u does not have: it does not touch u.
    _swap_along_path(at, v, c, d)
    at[u][c], at[v][c] = v, u


def _color_by_fan(at: _Colors, u: int, v: int) -> None:
    # A fan: each edge (u, w) has a color that is free at the fan's node before it.
    fan = [v]
    while True:
        more = [w for color, w in sorted(at[u].items()) if w not in fan and color not in at[fan[-1]]]
        if not more:
            break
        fan.append(more[0])
    c, d = _free(at[u]), _free(at[fan[-1]])
    _swap_along_path(at, u, d, c)  # now d is free at u
    color_of = {w: color for color, w in at[u].items()}
    # The swap may have broken the fan, but (their lemma) not before a node at which d is free.
    last = next(k for k, w in enumerate(fan) if d not in at[w])
    # Rotate: every edge of the fan up to that node takes the color of the next one, and the last one takes d.
    for before, after in pairwise(fan[: last + 1]):
        color = color_of[after]
        del at[after][color]
        at[before][color], at[u][color] = u, before
    at[u][d], at[fan[last]][d] = fan[last], u


def _swap_along_path(at: _Colors, start: int, first: int, second: int) -> None:
    """Swap two colors along the path first, second, first, … from `start`; after that `first` is free there."""
    path, x, color = [], start, first
    while color in at[x]:
        y = at[x][color]
        path.append((x, y, color))
        x, color = y, first + second - color
    for x, y, color in path:
        del at[x][color], at[y][color]
    for x, y, color in path:
        other = first + second - color
        at[x][other], at[y][other] = y, x


def _free(colors: dict[int, int]) -> int:
    """The smallest color that is not there."""
    return next(color for color in range(len(colors) + 1) if color not in colors)


def _is_bipartite(graph: Graph) -> bool:
    side: dict[int, int] = {}
    for component in graph.components:
        side[component[0]] = 0
        queue = [component[0]]
        for u in queue:
            for v in graph.neighbors(u):
                if v not in side:
                    side[v] = 1 - side[u]
                    queue.append(v)
    return all(side[u] != side[v] for u, v in graph.edges)
