"""Subgraphs of the edges in use at one mixing: samples, matchings, and edge colorings.

In a matching a node has at most one edge. An edge coloring divides all edges into matchings; those that mix well are
few, of equal size, and run along the dimensions of grids and hypercubes.

Legend: E edges, Δ the largest degree; `colors` (E,) has one color per edge, in the order of `graph.edges`.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.graphs.trees import two_coloring
from mixwise.seeding import numpy_generator

_Colors: TypeAlias = list[dict[int, int]]  # per node: each color there -> the neighbor at the other end of that edge
_WEIGHT_STEPS = 2.0**40  # resolution of the weights, relative to the largest
_BLOSSOM_LIMIT = 20_000  # nodes × edges
_SWEEPS = 4  # over all edges at once, before the rest are taken one by one
_MAX_CLASSES = 4096  # of parallel edges: with more, coloring them would take long
_MAX_PATHS = 2_000_000  # paths of three edges that are followed in the search for squares


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


def heaviest_matching(graph: Graph, weights: npt.NDArray[np.float64]) -> Graph:
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
    weighted.add_weighted_edges_from(np.column_stack([graph.edge_array, steps])[steps > 0].tolist())
    return Graph(graph.n, sorted(nx.max_weight_matching(weighted)), labels=graph.labels)


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


# --- edge colorings ---
def matching_decomposition(graph: Graph) -> tuple[Graph, ...]:
    """The edges divided into matchings: Δ of them on a bipartite graph (the minimum), at most Δ + 1 otherwise.

    This is a proper edge coloring, one color per matching. On bipartite graphs each new edge frees a color by swapping
    two colors along an alternating path (König); on others by fans and alternating paths (Misra and Gries, 1992).

    >>> [matching.edges for matching in matching_decomposition(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]))]
    [((0, 1), (2, 3)), ((0, 3), (1, 2))]
    """
    graph.require_undirected("matching_decomposition")
    return _matchings(graph, _proper_colors(graph))


def edge_coloring(graph: Graph) -> tuple[Graph, ...]:
    """The edges divided into matchings of nearly equal size: Δ on a bipartite graph, at most Δ + 1 on others.

    Where the graph is a grid, torus or hypercube, or another product of paths and even cycles, opposite edges of every
    square get the same color, so that each matching works along one dimension; on a hypercube (a 4 × 4 torus is one)
    averaging along all colors in turn is then an exact average. A proper coloring alone does not do that: 6 of the
    24 colorings of the cube do not.

    >>> [matching.edges for matching in edge_coloring(Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)]))]
    [((0, 1), (2, 3)), ((0, 3), (1, 2))]
    """
    graph.require_undirected("edge_coloring")
    colors = _by_dimension(graph)
    colors = _proper_colors(graph) if colors is None else colors
    return _matchings(graph, _balanced(graph, colors))


def dimensions(graph: Graph) -> tuple[tuple[Graph, ...], ...] | None:
    """The matchings of each dimension of a product of paths and even cycles; None for other graphs.

    Matchings of different dimensions commute: it does not matter in which order a row moves along them.

    >>> [len(matchings) for matchings in dimensions(Graph(4, [(0, 1), (1, 2), (2, 3)]))]
    [2]
    """
    import networkx as nx  # slow to import

    colors = _by_dimension(graph)
    if colors is None and max(graph.degrees, default=0) <= 2 and two_coloring(graph) is not None:
        colors = _proper_colors(graph)
    if colors is None:
        return None
    matchings = _matchings(graph, colors)
    partners = [_partners(matching) for matching in matchings]
    together: nx.Graph[int] = nx.empty_graph(len(matchings))
    together.add_edges_from(
        (a, b) for a, b in combinations(together, 2) if (partners[a][partners[b]] != partners[b][partners[a]]).any()
    )
    return tuple(tuple(matchings[color] for color in sorted(part)) for part in nx.connected_components(together))


def _matchings(graph: Graph, colors: IntArray) -> tuple[Graph, ...]:
    """The edges of each color."""
    count = colors.max(initial=-1) + 1
    return tuple(Graph(graph.n, graph.edge_array[colors == color], labels=graph.labels) for color in range(count))


def _partners(matching: Graph) -> IntArray:
    """The partner of each node (n,), itself if it has none."""
    partners = np.arange(matching.n)
    partners[matching.edge_array] = matching.edge_array[:, ::-1]
    return partners


def _proper_colors(graph: Graph) -> IntArray:
    """Colors, Δ on a bipartite graph and at most Δ + 1 otherwise, such that edges that share a node differ."""
    at: _Colors = [{} for _ in range(graph.n)]
    color_edge = _color_in_bipartite if two_coloring(graph) is not None else _color_by_fan
    for u, v in graph.edges:
        color_edge(at, u, v)
    color_of = {(u, v): color for u, colors in enumerate(at) for color, v in colors.items()}
    return np.unique([color_of[edge] for edge in graph.edges], return_inverse=True)[1]


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


def _by_dimension(graph: Graph) -> IntArray | None:
    """Colors in which opposite edges of every square agree; None unless that takes no more colors than are needed."""
    E = len(graph.edge_array)
    degrees = np.array(graph.degrees)
    if int((degrees.astype(np.int64) ** 3).sum()) > _MAX_PATHS + 64 * E:
        return None
    classes = _parallel_classes(graph)
    count = int(classes.max(initial=-1)) + 1
    if 2 * count > E or count > _MAX_CLASSES:  # few squares, or none
        return None
    ends = np.stack([graph.edge_array.ravel(), np.repeat(classes, 2)], axis=1)
    if len(np.unique(ends, axis=0)) < len(ends):  # two edges of a class share a node
        return None
    touches = sparse.csr_array((np.ones(len(ends)), (ends[:, 1], ends[:, 0])), shape=(count, graph.n))
    colors = _by_saturation(touches @ touches.T, int(degrees.max()) + (two_coloring(graph) is None))
    return None if colors is None else colors[classes]


def _by_saturation(conflicts: sparse.csr_array, most: int) -> IntArray | None:
    """Colors for the classes (C,), at most `most`, such that those in conflict differ; None if there are too few.

    Next is the class with the most colors around it, then the one with the most conflicts (Brélaz, 1979).
    """
    count = conflicts.shape[0]
    colors, around = np.full(count, -1), np.zeros((count, most), dtype=bool)
    for _ in range(count):
        order = around.sum(axis=1) * (count + 1) + np.diff(conflicts.indptr)
        c = int(np.where(colors < 0, order, -1).argmax())
        free = np.flatnonzero(~around[c])
        if not len(free):
            return None
        colors[c] = free[0]
        around[conflicts.indices[conflicts.indptr[c] : conflicts.indptr[c + 1]], free[0]] = True
    return colors


def _parallel_classes(graph: Graph) -> IntArray:
    """A class for every edge (E,), the same for opposite edges of a square h – i – j – k."""
    from scipy.sparse import csgraph

    receivers, degrees = graph.arcs.receivers, np.array(graph.degrees)
    first = np.cumsum(degrees) - degrees
    i, j = graph.edge_array.T
    # All paths h – i – j – k: each neighbor of i with each neighbor of j.
    count = degrees[i] * degrees[j]
    edge = np.repeat(np.arange(len(i)), count)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    i, j = i[edge], j[edge]
    h, k = receivers[first[i] + place // degrees[j]], receivers[first[j] + place % degrees[j]]
    keys = graph.edge_array @ np.array([graph.n, 1])
    wanted = np.minimum(h, k) * graph.n + np.maximum(h, k)
    opposite = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    square = (h != j) & (k != i) & (keys[opposite] == wanted)
    pairs = edge[square], opposite[square]
    parallel = sparse.csr_array((np.ones(len(pairs[0])), pairs), shape=(len(keys), len(keys)))
    return csgraph.connected_components(parallel, directed=False)[1].astype(np.int64)


def _balanced(graph: Graph, colors: IntArray) -> IntArray:
    """The coloring, changed in place until its classes differ by at most one edge; it stays proper.

    Two matchings form paths and cycles in which they alternate. Swapping the colors of a path that has one more edge
    of the larger class moves one edge to the smaller class.
    """
    from scipy.sparse import csgraph

    while len(sizes := np.bincount(colors)) and np.ptp(sizes) > 1:
        large, small = int(sizes.argmax()), int(sizes.argmin())
        both = np.flatnonzero((colors == large) | (colors == small))
        i, j = graph.edge_array[both].T
        joined = sparse.csr_array((np.ones(len(both)), (i, j)), shape=(graph.n, graph.n))
        component = csgraph.connected_components(joined, directed=False)[1][i]
        surplus = np.bincount(component, weights=np.where(colors[both] == large, 1, -1))
        swapped = np.flatnonzero(surplus > 0)[: (sizes[large] - sizes[small]) // 2]
        chosen = both[np.isin(component, swapped)]
        colors[chosen] = large + small - colors[chosen]
    return colors
