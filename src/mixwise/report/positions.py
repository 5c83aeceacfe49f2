"""Where a page draws the nodes of a graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mixwise.graphs import Graph

DRAWN = 300  # nodes; more are a blot
_DRAWN_EDGES = 4000
_DENSE = 3.2  # edges per node from which on only a circle keeps nodes and edges apart
_SPRINGS = 120  # nodes above which exact distances take too long


def positions(graph: Graph) -> npt.NDArray[np.float64] | None:
    """(n, 2) in the unit square; None for a graph that is too large to look at.

    Rings, chains and dense graphs lie on a circle, in the order in which one walks along them; other nodes as far
    apart as they are in hops.
    """
    if graph.n > DRAWN or len(graph.edge_array) > _DRAWN_EDGES:
        return None
    order = _walk(graph)
    if order is None and len(graph.edge_array) > _DENSE * graph.n:
        order = list(range(graph.n))
    if order is not None:
        angle = np.empty(graph.n)
        angle[order] = 2 * np.pi * np.arange(graph.n) / graph.n
        return np.stack([0.5 + 0.5 * np.sin(angle), 0.5 - 0.5 * np.cos(angle)], axis=1)
    return _spread_out(graph)


def _walk(graph: Graph) -> list[int] | None:
    """The nodes of a ring or a chain one after the other."""
    neighbors: list[set[int]] = [set() for _ in range(graph.n)]
    for i, j in graph.edges:
        neighbors[i].add(j)
        neighbors[j].add(i)
    if any(len(near) > 2 for near in neighbors):
        return None
    at = next((i for i in range(graph.n) if len(neighbors[i]) < 2), 0)
    order = [at]
    while (following := next((j for j in sorted(neighbors[at]) if j not in order), None)) is not None:
        order.append(following)
        at = following
    return order if len(order) == graph.n else None


def _spread_out(graph: Graph) -> npt.NDArray[np.float64]:
    import networkx as nx  # only pictures need it

    g: nx.Graph[int] = nx.Graph()
    g.add_nodes_from(range(graph.n))
    g.add_edges_from(graph.edges)
    if graph.n <= _SPRINGS and nx.is_connected(g):
        # A small circle is added: eigenvectors may put nodes on one spot, such as the leaves of a star, where the
        # layout would divide by the distance 0.
        places = nx.circular_layout(g)
        if graph.n > 3:
            spectral = nx.spectral_layout(g)
            places = {i: spectral[i] + 0.1 * places[i] for i in g}
        places = nx.kamada_kawai_layout(g, pos=places)
    else:
        places = nx.spring_layout(g, seed=0, iterations=100)
    spots = np.array([places[i] for i in range(graph.n)], dtype=np.float64)
    spots = _turned(spots - spots.mean(axis=0))
    low, high = spots.min(axis=0), spots.max(axis=0)
    return np.where(high > low, (spots - low) / np.where(high > low, high - low, 1.0), 0.5)


def _turned(spots: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The longest direction lies across; the page is wider than high."""
    _, _, axes = np.linalg.svd(spots, full_matrices=False)
    turned: npt.NDArray[np.float64] = spots @ axes.T
    return turned
