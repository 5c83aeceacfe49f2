"""Weights that know the graph: their formulas, and doubly stochastic on every graph."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixwise.graphs as g
import mixwise.mixing as m
from builders import ONE_WAY_RING, as_networkx, assert_symmetric_doubly_stochastic, cases, normal_rows, refused
from mixwise.errors import GraphError, MixingError
from mixwise.graphs import Graph, ring
from mixwise.mixing import MixingMatrix, clique_averaging, from_edge_weights, lazy, metropolis_hastings, uniform
from strategies import connected_graphs, graphs

seeds = st.integers(0, 2**32 - 1)


# --- builders ---
@given(graph=graphs(1, 14, directed=False))
def test_metropolis_hastings_and_max_degree_by_their_formulas(graph):
    d = graph.degrees
    local, one = metropolis_hastings(graph), m.max_degree(graph)
    for i, j in graph.edges:
        assert local[i, j] == local[j, i] == 1 / (1 + max(d[i], d[j]))
        assert one[i, j] == one[j, i] == 1 / (1 + max(d))
    for i in range(graph.n):
        assert local[i, i] == pytest.approx(1 - sum(1 / (1 + max(d[i], d[j])) for j in graph.neighbors(i)), abs=1e-14)
    for W in (local, one, lazy(local), lazy(one)):
        assert_symmetric_doubly_stochastic(W, graph)
    assert m.lazy_metropolis_hastings(graph) == lazy(local)
    assert m.full_averaging(graph).is_average


@pytest.mark.parametrize(
    "graph", [g.ring(3), g.ring(16), g.torus(4, 4), g.hypercube(3), g.complete(6), g.complete(1), Graph(3, [])]
)
def test_on_regular_graphs_all_builders_agree(graph):
    """1 / (1 + d) everywhere: 1/3 on a ring, 1/n on a complete graph."""
    expected = (np.eye(graph.n) + graph.adjacency.toarray()) / (1 + graph.degrees[0])
    for builder in (metropolis_hastings, m.max_degree, uniform):
        np.testing.assert_allclose(builder(graph).to_dense(), expected, rtol=0, atol=1e-15 * graph.n)
    assert metropolis_hastings(g.ring(16))[0, 1] == metropolis_hastings(g.ring(16))[0, 15] == 1 / 3


@given(graph=graphs(1, 12))
def test_uniform_sender_splits_evenly_among_receivers(graph):
    W = m.uniform_sender(graph)
    assert (W.kind, W.graph) == ("sender", graph)
    for i in range(graph.n):
        heard_by = {i, *graph.neighbors(i)}
        assert all(W[i, j] == (1 / len(heard_by) if j in heard_by else 0) for j in range(graph.n))


def test_uniform_on_directed_regular_graphs_is_uniform_sender():
    np.testing.assert_array_equal(uniform(ONE_WAY_RING).to_dense(), (np.eye(3) + np.roll(np.eye(3), 1, axis=1)) / 2)
    for graph in (g.directed_ring(7), g.directed_exponential(12), g.ring(6)):
        np.testing.assert_array_equal(m.uniform_sender(graph).to_dense(), uniform(graph).to_dense())


SENDER = MixingMatrix.from_dense([[0.2, 0.8], [0.0, 1.0]], kind="sender")


@cases(
    "call, message",
    (lambda: metropolis_hastings(ONE_WAY_RING), "metropolis_hastings needs an undirected graph.*use minimize_gme"),
    (lambda: m.max_degree(ONE_WAY_RING), "max_degree needs an undirected graph.*use minimize_gme"),
    (lambda: m.symmetrized(uniform(ONE_WAY_RING)), "symmetrized needs an undirected graph"),
    (lambda: m.symmetrized(MixingMatrix(g.chain(2), [0.2, 0.8, 0.1, 0.9], "sender")), 'needs kind="doubly"'),
    (lambda: uniform(g.star(4)), r"regular graph, but the degrees run from 1 to 3; use metropolis_hastings"),
    (lambda: uniform(Graph(2, [(0, 1)], directed=True)), "degrees run from 0 to 1"),
    (lambda: clique_averaging([(0, 1), (1, 2)]), "node 1 is in two cliques; clique averaging needs disjoint"),
    (lambda: clique_averaging([(0, 7)], g.ring(4)), r"node 7 is in a clique, but the nodes are 0\.\.3"),
    (lambda: clique_averaging([(0, 1, 2)], g.ring(4)), r"given for \(0, 2\), which is not an edge"),
)
def test_builders_reject_graphs_that_they_do_not_fit(call, message):
    refused(MixingError, message, call)


# --- lazy and symmetrized ---
@given(graph=connected_graphs(1, 12))
def test_lazy_moves_every_eigenvalue_halfway_to_1(graph):
    W = metropolis_hastings(graph)
    before, after = (np.sort(m.eigenvalues(matrix)) for matrix in (W, lazy(W)))
    np.testing.assert_allclose(after, (1 + before) / 2, atol=1e-12)
    assert after.min() >= -1e-12
    assert lazy(SENDER).kind == "sender"
    np.testing.assert_allclose(lazy(SENDER).to_dense(), [[0.6, 0.4], [0, 1]])


@given(graph=connected_graphs(1, 10), seed=seeds)
def test_symmetrized_is_the_mean_with_the_transpose(graph, seed):
    G = normal_rows(graph.n, graph.n, seed)
    W = m.minimize_gme(G @ G.T, graph).W
    made = m.symmetrized(W)
    assert made.is_symmetric
    np.testing.assert_array_equal(made.to_dense(), (W.to_dense() + W.to_dense().T) / 2)
    assert m.symmetrized(made) == made


# --- clique averaging ---
def test_clique_averaging_is_a_projection():
    """Averaging twice is averaging once; inside a clique all weights are 1/|C|, outside a node keeps its row."""
    W = clique_averaging([(4, 0, 2), (1, 3)], g.complete(6)).to_dense()
    np.testing.assert_allclose(W @ W, W, atol=1e-15)
    np.testing.assert_allclose(W[np.ix_([0, 2, 4], [0, 2, 4])], 1 / 3)
    np.testing.assert_allclose(W[np.ix_([1, 3], [1, 3])], 1 / 2)
    assert (W[5, 5], np.linalg.matrix_rank(W)) == (1, 3)


def test_clique_averaging_makes_its_own_graph():
    assert clique_averaging([(0, 1, 2), (), (3, 4)]).graph == Graph(5, [(0, 1), (0, 2), (1, 2), (3, 4)])
    np.testing.assert_array_equal(clique_averaging([]).to_dense(), [[1]])
    assert clique_averaging([range(7)]).is_average  # to the last bit


# --- weights per edge ---
@given(graph=graphs(1, 10), seed=seeds)
def test_from_edge_weights_keeps_the_edges_and_fills_the_loops(graph, seed):
    w = np.random.default_rng(seed).random(len(graph.edges)) / max(1, graph.n)
    W = from_edge_weights(graph, w, kind="sender")
    for (i, j), value in zip(graph.edges, w, strict=True):
        assert W[i, j] == value
        assert graph.directed or W[j, i] == value
    np.testing.assert_allclose(W.to_dense().sum(axis=1), 1, atol=1e-14)
    assert from_edge_weights(graph, dict(zip(graph.edges, w.tolist(), strict=True)), kind="sender") == W
    if not graph.directed:
        assert from_edge_weights(graph, w).kind == "doubly"


def test_from_edge_weights_takes_both_directions_and_either_order():
    more_clockwise = {(0, 1): 0.3, (1, 0): 0.1, (1, 2): 0.3, (2, 1): 0.1, (2, 0): 0.3, (0, 2): 0.1}
    W = from_edge_weights(g.ring(3), more_clockwise).to_dense()
    np.testing.assert_allclose(W, [[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
    assert from_edge_weights(g.chain(2), {(1, 0): 0.2}) == from_edge_weights(g.chain(2), {(0, 1): 0.2})
    np.testing.assert_array_equal(from_edge_weights(g.ring(4), {}).to_dense(), np.eye(4))
    assert 0 <= from_edge_weights(g.star(11), np.full(10, 0.1))[0, 0] <= 1e-15  # 10 · 0.1 is not quite 1


@cases(
    "weights, message",
    ({(0, 2): 0.1}, r"given for \(0, 2\), which is not an edge; drop it or add the edge"),
    ({(1, 1): 0.1}, r"a weight is given for \(1, 1\), but a loop takes what is left of its row; drop it"),
    ([0.1, 0.1], "2 weights for 4 edges; give one per entry of graph.edges"),
    ({(0, 1): 0.7, (1, 2): 0.6}, r"edges of node 1 sum to 1\.3, which leaves -0\.3 for its loop; scale"),
    ({(0, 1): -0.1}, r"W\[0, 1\] = -0\.1; weights lie between 0 and 1"),
)
def test_from_edge_weights_errors(weights, message):
    refused(MixingError, message, from_edge_weights, g.ring(4), weights)


BUILDERS = [
    m.metropolis_hastings, m.max_degree, m.uniform, m.uniform_sender, m.lazy_metropolis_hastings, m.full_averaging,
    m.optimal_gap, partial(m.matcha, budget=0.5), partial(m.minimize_gme, np.eye(4)), m.GmeProblem, m.exact_average,
    partial(m.optimize_placement, np.eye(4)), m.distinct_placements, partial(m.clique_averaging, [(0, 1)]),
    lambda graph: m.MixingMatrix(graph, np.full(12, 1 / 3)), lambda graph: m.MixingMatrix.from_dense(np.eye(4), graph),
    lambda graph: m.from_edge_weights(graph, np.full(4, 1 / 3)),
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
def test_what_means_a_graph_is_one_and_everything_else_is_refused_in_one_line(build):
    expected = build(ring(4))
    for form in (as_networkx(ring(4)), "ring:4"):
        built = build(form)
        if isinstance(built, MixingMatrix):
            assert built == expected
    refused(GraphError, "graph is 8; pass a mixwise.Graph such as .* a spec such as 'ring:16'", build, 8)
