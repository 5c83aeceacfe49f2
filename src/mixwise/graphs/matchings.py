"""Subgraphs of the edges in use at one mixing: matchings, in which a node has at most one edge, and samples.

Legend: Δ the largest degree. `at[u]` maps each color at node u to the neighbor at the other end of that edge.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.graphs.trees import two_coloring
from mixwise.seeding import numpy_generator

FloatArray: TypeAlias = npt.NDArray[np.float64]
_Colors: TypeAlias = list[dict[int, int]]
_WEIGHT_STEPS = 2.0**40  # resolution of the weights, relative to the largest
_BLOSSOM_LIMIT = 20_000  # nodes × edges
_SWEEPS = 4  # over all edges at once, before the rest are taken one by one


def edge_sample(graph: Graph, probability: float, seed: int = 0, t: int = 0) -> Graph:
    """The graph with each edge (or arc) kept independently with the given probability; it may be disconnected."""
    if not 0 <= probability <= 1:  # NaN fails every comparison
        raise GraphError(f"probability = {probability}; give a number from 0 to 1")
    kept = numpy_generator(seed, "edge_sample", t).random(len(graph.edge_array)) < probability
    return Graph(graph.n, graph.edge_array[kept], graph.directed, graph.labels)


def random_matching(graph: Graph, seed: int = 0, t: int = 0) -> Graph:
    """A random maximal matching: edges in random order, each taken if both its ends are still free.

    The same seed and t give the same matching in every process. No edge of the graph can be added to it.
    """
    graph.require_undirected("random_matching")
    return _greedy(graph, numpy_generator(seed, "random_matching", t).permutation(len(graph.edge_array)))


def heaviest_matching(graph: Graph, weights: FloatArray) -> Graph:
    """A matching with a large total weight.

        maximize  Σ_{e ∈ M} w_e   over the matchings M of the graph

    Exact (Edmonds' blossom algorithm) where nodes × edges is at most 20,000: 0.9 ms for 16 nodes on a ring or torus,
    10 ms for 64. On larger graphs greedy, heaviest edge first: at least half of the optimum, and 92 to 94 % of it on
    tori with random weights. Edges of weight 0 are left out.

    Args:
        graph: an undirected graph.
        weights: (E,), one weight of at least 0 per edge, in the order of `graph.edges`.

    >>> heaviest_matching(Graph(4, [(0, 1), (1, 2), (2, 3)]), np.array([1.0, 3.0, 1.0])).edges
    ((1, 2),)
    """
    graph.require_undirected("heaviest_matching")
    if len(weights) != len(graph.edge_array) or not np.all(weights >= 0):
        raise GraphError(f"got {len(weights)} weights; give one number per edge ({len(graph.edge_array)}), 0 or larger")
    # Whole numbers, so that no rounding error inside the algorithm decides.
    steps = np.rint(weights / max(float(weights.max(initial=0.0)), 1e-300) * _WEIGHT_STEPS).astype(np.int64)
    if graph.n * len(steps) > _BLOSSOM_LIMIT:
        return _greedy(graph, np.argsort(-steps, kind="stable")[: np.count_nonzero(steps)])
    import networkx as nx  # slow to import

    weighted: nx.Graph[int] = nx.Graph()
    positive = np.flatnonzero(steps)
    weighted.add_weighted_edges_from(np.column_stack([graph.edge_array, steps])[positive].tolist())
    return Graph(graph.n, sorted(nx.max_weight_matching(weighted)), labels=graph.labels)


def matching_decomposition(graph: Graph) -> tuple[Graph, ...]:
    """The edges divided into matchings: Δ of them on a bipartite graph (the minimum), at most Δ + 1 otherwise.

    This is a proper edge coloring, one color per matching. On bipartite graphs each new edge frees a color by swapping
    two colors along an alternating path (König); on others by fans and alternating paths (Misra and Gries, 1992).

    >>> [matching.edges for matching in matching_decomposition(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]))]
    [((0, 1), (2, 3)), ((0, 3), (1, 2))]
    """
    graph.require_undirected("matching_decomposition")
    at: _Colors = [{} for _ in range(graph.n)]
    color_edge = _color_in_bipartite if two_coloring(graph) is not None else _color_by_fan
    for u, v in graph.edges:
        color_edge(at, u, v)
    matchings: dict[int, list[tuple[int, int]]] = {}
    for u, colors in enumerate(at):
        for color, v in colors.items():
            matchings.setdefault(color, []).append((u, v))
    return tuple(Graph(graph.n, matchings[color], labels=graph.labels) for color in sorted(matchings))


def _greedy(graph: Graph, order: IntArray) -> Graph:
    """The matching that takes the edges in this order, each if both its ends are still free."""
    i, j = graph.edge_array[order].T
    taken = []
    for _ in range(_SWEEPS):  # an edge that comes first at both its ends is taken, whatever the others do
        place, first = np.arange(len(i)), np.full(graph.n, len(i))
        for ends in (i, j):
            np.minimum.at(first, ends, place)
        chosen = (first[i] == place) & (first[j] == place)
        taken.append(np.stack([i[chosen], j[chosen]], axis=1))
        free = np.ones(graph.n, dtype=bool)
        free[taken[-1]] = False
        left = free[i] & free[j]
        i, j = i[left], j[left]
    still_free, rest = [True] * graph.n, []
    for u, v in zip(i.tolist(), j.tolist(), strict=True):  # long chains, of which each edge waits for the one before
        if still_free[u] and still_free[v]:
            still_free[u] = still_free[v] = False
            rest.append((u, v))
    pairs = np.concatenate([*taken, np.array(rest, dtype=np.int64).reshape(-1, 2)])
    return Graph(graph.n, pairs, labels=graph.labels)


# --- edge coloring ---
def _color_in_bipartite(at: _Colors, u: int, v: int) -> None:
    """Color the edge u – v of a bipartite graph."""
    c, d = _free(at[u]), _free(at[v])
    # The path c, d, c, … from v enters the side of u by color c only, which is free at u: it does not touch u.
    _swap_along_path(at, v, c, d)
    at[u][c], at[v][c] = v, u


def _color_by_fan(at: _Colors, u: int, v: int) -> None:
    """Color the edge u – v of any graph."""
    fan = [v]  # the color of each edge (u, w) of the fan is free at the node before w
    while more := [w for color, w in sorted(at[u].items()) if w not in fan and color not in at[fan[-1]]]:
        fan.append(more[0])
    c, d = _free(at[u]), _free(at[fan[-1]])
    _swap_along_path(at, u, d, c)  # now d is free at u
    color_of = {w: color for color, w in at[u].items()}
    # The swap may have broken the fan, but (their lemma) not before a node at which d is free.
    last = next(k for k, w in enumerate(fan) if d not in at[w])
    # Rotate: each edge of the fan up to that node takes the color of the next one, and the last one takes d.
    for before, after in pairwise(fan[: last + 1]):
        color = color_of[after]
        del at[after][color]
        at[before][color], at[u][color] = u, before
    at[u][d], at[fan[last]][d] = fan[last], u


def _swap_along_path(at: _Colors, start: int, first: int, second: int) -> None:
    """Swap two colors along the path first, second, first, … from `start`, which frees `first` there."""
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
    """The smallest color that is not in use."""
    return next(color for color in range(len(colors) + 1) if color not in colors)
