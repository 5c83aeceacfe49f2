"""The exact average in as many matchings as a ring, torus or hypercube is wide."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from mixwise.graphs import Graph
from mixwise.graphs.coloring import dimensions
from mixwise.mixing.matrix import MixingMatrix
from mixwise.mixing.weights import from_edge_weights


def exact_average(graph: Graph) -> tuple[MixingMatrix, ...] | None:
    """Matchings with weights whose product is J = 𝟏𝟏ᵀ/n; None for graphs without a known sequence.

    On a ring with an even number n of nodes, n/2 matchings, even edges and odd edges in turn, are an exact average if
    the weight of the pairs in round k = 1, …, n/2 is

        w_k = s_k / (s_1 + s_k),   s_k = sin((2k − 1) π / n)

    (proof: docs/decisions/0018-exact-averages-on-rings.md). Half of a pair's difference is exchanged in the first and
    in the last round, more in between. No method is faster, since information needs n/2 rounds to reach the opposite
    node. A path of n nodes is a ring of 2n, folded: n matchings. Products of even rings and paths (tori, grids,
    hypercubes) average along one dimension after the other; matchings of different dimensions commute, and so do the
    averages.

    Args:
        graph: an undirected graph, numbered in any way.

    >>> from mixwise.graphs import ring
    >>> [round(W[0, 0], 3) for W in exact_average(ring(6))]
    [0.5, 0.333, 0.5]
    """
    along = dimensions(graph) if graph.is_connected else None
    if along is None:
        return None
    rounds = []
    for matchings in along:
        n = _size_of_rings(matchings)
        if n is None:
            return None
        for k in range(max(1, n // 2)):
            s, first = math.sin((2 * k + 1) * math.pi / n), math.sin(math.pi / n)
            pairs = matchings[k % len(matchings)]
            rounds.append(from_edge_weights(pairs, np.full(len(pairs.edge_array), s / (first + s))))
    return tuple(rounds)


def _size_of_rings(matchings: tuple[Graph, ...]) -> int | None:
    """The nodes of the rings that two matchings form, or twice those of the paths; None if not all are alike."""
    if len(matchings) == 1:  # single edges
        return 2
    edges = np.concatenate([matching.edge_array for matching in matchings])
    n = matchings[0].n
    union = sparse.csr_array((np.ones(len(edges)), edges.T), shape=(n, n))
    part = csgraph.connected_components(union, directed=False)[1]
    nodes, arcs = np.bincount(part), np.bincount(part[edges[:, 0]])
    if len(matchings) > 2 or np.ptp(nodes) or np.ptp(arcs):
        return None
    return int(nodes[0]) if arcs[0] == nodes[0] else 2 * int(nodes[0])
