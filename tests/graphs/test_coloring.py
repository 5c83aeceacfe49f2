"""Edge colorings: proper, few colors of equal size, and along the dimensions of grids and hypercubes."""

from functools import reduce

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixwise import graphs
from mixwise.graphs import edge_coloring, matching_decomposition
from mixwise.mixing import metropolis_hastings
from strategies import graphs as graphs_of


@settings(max_examples=150)
@given(graph=graphs_of(1, 12, directed=False), coloring=st.sampled_from([edge_coloring, matching_decomposition]))
def test_a_coloring_is_proper_and_covers_every_edge_with_few_colors_of_equal_size(graph, coloring):
    """Δ + 1 colors at most (Vizing), Δ if bipartite (König)."""
    colors = coloring(graph)
    assert sorted(edge for matching in colors for edge in matching.edges) == list(graph.edges)
    assert all(max(matching.degrees) == 1 for matching in colors)
    bipartite = nx.is_bipartite(nx.Graph(list(graph.edges)))
    assert len(colors) <= max(graph.degrees) + (0 if bipartite else bool(graph.edges))
    sizes = [len(matching.edges) for matching in colors]
    assert coloring is matching_decomposition or max(sizes, default=0) - min(sizes, default=0) <= 1


@pytest.mark.parametrize(
    ("graph", "colors"),
    [(graphs.hypercube(d), d) for d in (1, 2, 3, 4, 5)] + [(graphs.torus(4, 4), 4), (graphs.torus(2, 4), 3)],
)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_all_colors_of_a_hypercube_are_an_exact_average_however_its_nodes_are_numbered(graph, colors, seed):
    order = np.random.default_rng(seed).permutation(graph.n)
    matchings = edge_coloring(graph.permuted(order.tolist()))
    assert len(matchings) == colors
    product = reduce(np.matmul, [metropolis_hastings(matching).to_dense() for matching in matchings])
    np.testing.assert_allclose(product, 1 / graph.n, atol=1e-15)


@pytest.mark.parametrize(
    ("family", "rows", "columns"),
    [(graphs.torus, 4, 6), (graphs.torus, 6, 6), (graphs.grid, 3, 5), (graphs.grid, 6, 6)],
)
def test_a_color_of_a_grid_works_along_one_dimension(family, rows, columns):
    for matching in edge_coloring(family(rows, columns)):
        assert len({i // columns == j // columns for i, j in matching.edges}) == 1


def test_a_large_torus_takes_four_colors():
    assert [len(matching.edges) for matching in edge_coloring(graphs.torus(40, 50))] == [1000] * 4
