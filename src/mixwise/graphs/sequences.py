"""Graphs that change from mixing to mixing; who talks to whom depends on the seed and t alone, on every process."""

from __future__ import annotations

import numpy as np

from mixwise.errors import GraphError
from mixwise.graphs.families import directed_exponential
from mixwise.graphs.graph import Graph
from mixwise.seeding import numpy_generator


def one_peer_exponential(n: int) -> tuple[Graph, ...]:
    """⌈log₂ n⌉ directed graphs, to be used in turn: in graph k every node i sends to i + 2^k mod n and to nobody else.

    With weights 1/2 (`mixing.uniform`) each is doubly stochastic. If n is a power of two, the product of all is 𝟏𝟏ᵀ/n:
    exact averaging in log₂ n mixings of one message per node (Ying et al., 2021). One node has one graph, without arcs.

    >>> [graph.edges[0] for graph in one_peer_exponential(8)]
    [(0, 1), (0, 2), (0, 4)]
    """
    n = directed_exponential(n).n  # which checks it
    i = np.arange(n)
    jumps = [1 << k for k in range((n - 1).bit_length())]
    graphs = (Graph(n, np.stack([i, (i + jump) % n], axis=1), directed=True) for jump in jumps)
    return tuple(graphs) or (Graph(n, [], directed=True),)


def edge_sample(graph: Graph, probability: float, seed: int = 0, t: int = 0) -> Graph:
    """The graph with each edge (or arc) kept with the given probability, independently; connected or not, as drawn."""
    if not 0 <= probability <= 1:  # NaN fails every comparison
        raise GraphError(f"probability = {probability}; give a number from 0 to 1")
    kept = numpy_generator(seed, "edge_sample", t).random(len(graph.edge_array)) < probability
    return Graph(graph.n, graph.edge_array[kept], graph.directed, graph.labels)
