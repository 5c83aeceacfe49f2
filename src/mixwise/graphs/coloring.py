"""Proper edge colorings that mix well: few matchings, of equal size, along the dimensions of grids and hypercubes.

Legend: E edges, Δ the largest degree; `colors` (E,) has one color per edge, in the order of `graph.edges`.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import sparse

from mixwise.graphs.graph import Graph, IntArray
from mixwise.graphs.matchings import matching_decomposition
from mixwise.graphs.trees import two_coloring

_MAX_CLASSES = 4096  # of parallel edges: with more, coloring them would take long
_MAX_PATHS = 2_000_000  # paths of three edges that are followed in the search for squares


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
    if colors is None:
        colors = np.empty(len(graph.edge_array), dtype=np.int64)
        for color, matching in enumerate(matching_decomposition(graph)):
            colors[edge_positions(graph, matching.edge_array)] = color
    colors = _balanced(graph, colors)
    return tuple(
        Graph(graph.n, graph.edge_array[colors == color], labels=graph.labels)
        for color in range(colors.max(initial=-1) + 1)
    )


def dimensions(graph: Graph) -> tuple[tuple[Graph, ...], ...] | None:
    """The matchings of each dimension of a product of paths and even cycles; None for other graphs.

    Matchings of different dimensions commute: it does not matter in which order a row moves along them.

    >>> [len(matchings) for matchings in dimensions(Graph(4, [(0, 1), (1, 2), (2, 3)]))]
    [2]
    """
    import networkx as nx  # slow to import

    colors = _by_dimension(graph)
    if colors is not None:
        matchings = [graph.edge_array[colors == color] for color in range(colors.max(initial=-1) + 1)]
    elif max(graph.degrees, default=0) <= 2 and two_coloring(graph) is not None:
        matchings = [matching.edge_array for matching in matching_decomposition(graph)]
    else:
        return None
    partners = [_partners(graph.n, pairs) for pairs in matchings]
    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(range(len(matchings)))
    together.add_edges_from(
        (a, b) for a, b in combinations(together, 2) if (partners[a][partners[b]] != partners[b][partners[a]]).any()
    )
    return tuple(
        tuple(Graph(graph.n, matchings[c], labels=graph.labels) for c in sorted(part))
        for part in nx.connected_components(together)
    )


def _partners(n: int, pairs: IntArray) -> IntArray:
    """The partner of each node (n,), itself if it has none."""
    partners = np.arange(n)
    partners[pairs] = pairs[:, ::-1]
    return partners


def edge_positions(graph: Graph, edges: IntArray) -> IntArray:
    """The positions of these edges (·, 2), smaller node first, in `graph.edge_array`."""
    keys = graph.edge_array @ np.array([graph.n, 1])
    positions: IntArray = np.searchsorted(keys, edges @ np.array([graph.n, 1]))
    return positions


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
    at_node = np.unique(ends, axis=0)
    if len(at_node) < len(ends):  # two edges of a class share a node
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
    """A proper coloring with as many colors, whose classes differ by at most one edge.

    Two matchings form paths and cycles in which they alternate. Swapping the colors of a path that has one more edge
    of the larger class moves one edge to the smaller class.
    """
    from scipy.sparse import csgraph

    colors = colors.copy()
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
