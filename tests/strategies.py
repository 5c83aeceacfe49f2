"""Strategies of the property tests: graphs and Gram matrices."""

from itertools import combinations, permutations

import numpy as np
from hypothesis import strategies as st

from mixwise.graphs import Graph


@st.composite
def connected_graphs(draw, min_nodes: int = 1, max_nodes: int = 12) -> Graph:
    """Any connected undirected graph: a random tree, some more edges, and the nodes renamed."""
    n = draw(st.integers(min_nodes, max_nodes))
    tree = [(draw(st.integers(0, j - 1)), j) for j in range(1, n)]
    more = draw(_some_of(list(combinations(range(n), 2))))
    return Graph(n, [*tree, *more]).permuted(draw(st.permutations(range(n))))


@st.composite
def graphs(draw, min_nodes: int = 1, max_nodes: int = 12, directed: bool | None = None) -> Graph:
    """Any graph, connected or not; with `directed=None`, directed or not."""
    n = draw(st.integers(min_nodes, max_nodes))
    directed = draw(st.booleans()) if directed is None else directed
    pairs = permutations(range(n), 2) if directed else combinations(range(n), 2)
    return Graph(n, draw(_some_of(list(pairs))), directed=directed)


@st.composite
def gram_matrices(draw, n: int, centered: bool = True, min_rank: int = 0) -> np.ndarray:
    """Γ = G Gᵀ (n, n): rows of scale 1e-3 to 1e3 in a space of drawn dimension, centered unless told not to."""
    rank = draw(st.integers(min_rank, n))
    scales = 10.0 ** np.array(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)))
    normal = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).standard_normal((n, rank))
    G = scales[:, None] * normal
    if centered:
        G = G - G.mean(axis=0)
    Gamma = G @ G.T
    return (Gamma + Gamma.T) / 2


@st.composite
def _some_of(draw, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    chosen = draw(st.integers(0, 2 ** len(pairs) - 1))  # one draw, a bit per pair: faster than a list of pairs
    return [pair for k, pair in enumerate(pairs) if chosen >> k & 1]
