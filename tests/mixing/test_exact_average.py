"""Matchings whose product is exactly J: rings, paths and their products, however their nodes are numbered."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import cases
from mixwise import graphs
from mixwise.mixing import exact_average
from mixwise.network import SimulatedNetwork
from mixwise.policies import Pairs
from planning import Planner

PRODUCTS = [
    graphs.torus(4, 6), graphs.torus(6, 6), graphs.torus(2, 8), graphs.grid(3, 4), graphs.grid(1, 6), graphs.grid(5, 5),
    graphs.hypercube(1), graphs.hypercube(4), graphs.ring(10), graphs.ring(2), graphs.chain(7), graphs.Graph(1, []),
]  # fmt: skip


def product(rounds):
    return reduce(np.matmul, [W.to_dense() for W in rounds])


@cases(
    "graph, rounds",
    *((graphs.ring(n), n // 2) for n in [*range(2, 40, 2), 64, 128]),
    *((graphs.chain(n), n if n > 2 else 1) for n in [*range(2, 12), 33]),
)
def test_a_ring_takes_as_many_rounds_as_its_diameter_and_a_path_one_more(graph, rounds):
    found = exact_average(graph)
    np.testing.assert_allclose(product(found), 1 / graph.n, atol=1e-15)
    assert len(found) == rounds == graph.diameter + (graph.n > 2 and not graph.is_regular)


def test_a_value_spreads_over_a_ring_in_the_parts_of_the_proof():
    n = 24
    S = np.sin(np.arange(n + 1) * np.pi / n)
    W = np.eye(n)
    for k, round in enumerate(exact_average(graphs.ring(n)), 1):
        W = W @ round.to_dense()
        reached = W[n // 2][W[n // 2] > 0]  # from one end to the other
        first = [S[2 * i + 1] / S[2 * k - 2 * i - 1] for i in range(k)]
        second = [S[2 * k - 2 * i] / S[2 * i] for i in range(1, k)]
        np.testing.assert_allclose(reached[1::2] / reached[::2], first, rtol=1e-11)
        np.testing.assert_allclose(reached[2::2] / reached[1:-1:2], second, rtol=1e-11)


@pytest.mark.parametrize("graph", PRODUCTS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_a_product_is_averaged_however_its_nodes_are_numbered(graph, seed):
    numbered = graph.permuted(np.random.default_rng(seed).permutation(graph.n).tolist())
    rounds = exact_average(numbered)
    np.testing.assert_allclose(product(rounds) if rounds else np.eye(1), 1 / graph.n, atol=1e-15)
    assert all(max(W.graph.degrees) == 1 and set(W.graph.edges) <= set(numbered.edges) for W in rounds)
    if graph.is_regular:  # rings and hypercubes: no method is faster
        assert len(rounds) == graph.diameter


@pytest.mark.parametrize(
    "graph",
    [graphs.ring(7), graphs.torus(5, 6), graphs.star(5), graphs.social_network(), graphs.Graph(4, [(0, 1), (2, 3)])],
)
def test_no_sequence_is_known_for_other_graphs(graph):
    assert exact_average(graph) is None


def test_pairs_are_an_exact_average_where_the_rounds_suffice():
    def rounds_of(rounds):
        return Planner(Pairs(rounds), SimulatedNetwork(graphs.ring(12))).plan(3).params

    assert rounds_of(6) == rounds_of(9) == exact_average(graphs.ring(12))
    assert len(rounds_of(5)) == 5
    assert {w for W in rounds_of(5) for w in W.edge_weights.values()} == {0.5}
