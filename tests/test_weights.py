"""Weights that know the graph: closed forms, doubly stochastic everywhere, the fastest no slower than the others."""

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixwise.errors import MixingError
from mixwise.graphs import (
    Graph,
    chain,
    complete,
    directed_exponential,
    directed_ring,
    grid,
    hypercube,
    random_connected,
    ring,
    social_network,
    star,
    torus,
)
from mixwise.mixing import (
    MixingMatrix,
    clique_averaging,
    eigenvalues,
    from_edge_weights,
    lazy,
    max_degree,
    metropolis_hastings,
    minimize_gme,
    optimal_gap,
    spectral_gap,
    symmetrized,
    uniform,
    uniform_sender,
)
from strategies import connected_graphs, graphs

ONE_WAY = Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)], directed=True)


def assert_symmetric_doubly_stochastic(W: MixingMatrix, graph: Graph) -> None:
    dense = W.to_dense()
    assert W.graph == graph
    assert W.is_symmetric
    assert dense.min() >= 0
    np.testing.assert_allclose(dense.sum(axis=0), 1, rtol=0, atol=1e-14 * max(2, graph.n))


# --- builders ---
@settings(max_examples=80)
@given(graph=graphs(1, 14, directed=False))
def test_builders_are_doubly_stochastic_on_every_graph(graph):
    for W in (metropolis_hastings(graph), max_degree(graph)):
        assert_symmetric_doubly_stochastic(W, graph)
        assert_symmetric_doubly_stochastic(lazy(W), graph)


@settings(max_examples=80)
@given(graph=graphs(1, 14, directed=False))
def test_metropolis_hastings_and_max_degree_by_their_formulas(graph):
    d = graph.degrees
    local, one = metropolis_hastings(graph), max_degree(graph)
    for i, j in graph.edges:
        assert local[i, j] == local[j, i] == 1 / (1 + max(d[i], d[j]))
        assert one[i, j] == one[j, i] == 1 / (1 + max(d))
    for i in range(graph.n):
        assert local[i, i] == pytest.approx(1 - sum(1 / (1 + max(d[i], d[j])) for j in graph.neighbors(i)), abs=1e-14)


@pytest.mark.parametrize(
    "graph", [ring(3), ring(16), torus(4, 4), hypercube(3), complete(6), complete(1), Graph(3, [])]
)
def test_on_regular_graphs_all_builders_agree(graph):
    """1 / (1 + d) everywhere: 1/3 on a ring, 1/n on a complete graph."""
    expected = (np.eye(graph.n) + graph.adjacency.toarray()) / (1 + graph.degrees[0])
    for builder in (metropolis_hastings, max_degree, uniform):
        np.testing.assert_allclose(builder(graph).to_dense(), expected, rtol=0, atol=1e-15 * graph.n)


def test_ring_weights_are_one_third():
    assert metropolis_hastings(ring(16))[0, 1] == metropolis_hastings(ring(16))[0, 15] == 1 / 3
    assert metropolis_hastings(ring(16))[0, 0] == pytest.approx(1 / 3, abs=1e-15)


def test_uniform_works_on_directed_regular_graphs_only():
    np.testing.assert_array_equal(uniform(ONE_WAY).to_dense(), (np.eye(4) + np.roll(np.eye(4), 1, axis=1)) / 2)
    with pytest.raises(MixingError, match=r"regular graph, but the degrees run from 1 to 3; take metropolis_hastings"):
        uniform(star(4))
    with pytest.raises(MixingError, match="degrees run from 0 to 1"):
        uniform(Graph(2, [(0, 1)], directed=True))


@settings(max_examples=60)
@given(graph=graphs(1, 12))
def test_uniform_sender_splits_evenly_among_receivers(graph):
    W = uniform_sender(graph)
    assert (W.kind, W.graph) == ("sender", graph)
    for i in range(graph.n):
        heard_by = {i, *graph.neighbors(i)}
        assert all(W[i, j] == (1 / len(heard_by) if j in heard_by else 0) for j in range(graph.n))


def test_uniform_sender_is_doubly_stochastic_where_uniform_is():
    for graph in (directed_ring(7), directed_exponential(12), ring(6)):
        np.testing.assert_array_equal(uniform_sender(graph).to_dense(), uniform(graph).to_dense())


@pytest.mark.parametrize("builder", [metropolis_hastings, max_degree])
def test_builders_of_symmetric_weights_refuse_directed_graphs(builder):
    with pytest.raises(MixingError, match=rf"{builder.__name__} needs an undirected graph.*take minimize_gme"):
        builder(ONE_WAY)
    with pytest.raises(MixingError, match="optimal_gap needs an undirected graph"):
        optimal_gap(ONE_WAY)
    with pytest.raises(MixingError, match="symmetrized needs an undirected graph"):
        symmetrized(uniform(ONE_WAY))


# --- lazy and symmetrized ---
@settings(max_examples=60)
@given(graph=connected_graphs(1, 12))
def test_lazy_moves_every_eigenvalue_halfway_to_1(graph):
    W = metropolis_hastings(graph)
    before, after = (np.sort(eigenvalues(matrix)) for matrix in (W, lazy(W)))
    np.testing.assert_allclose(after, (1 + before) / 2, atol=1e-12)
    assert after.min() >= -1e-12


def test_lazy_of_sender_weights_is_of_the_same_kind():
    W = MixingMatrix.from_dense([[0.2, 0.8], [0.0, 1.0]], kind="sender")
    assert lazy(W).kind == "sender"
    np.testing.assert_allclose(lazy(W).to_dense(), [[0.6, 0.4], [0, 1]])


@settings(max_examples=60)
@given(graph=connected_graphs(1, 10), seed=st.integers(0, 2**32 - 1))
def test_symmetrized_is_the_mean_with_the_transpose(graph, seed):
    G = np.random.default_rng(seed).standard_normal((graph.n, graph.n))
    W = minimize_gme(G @ G.T, graph).W
    made = symmetrized(W)
    assert made.is_symmetric
    np.testing.assert_array_equal(made.to_dense(), (W.to_dense() + W.to_dense().T) / 2)
    assert symmetrized(made) == made


def test_symmetrized_refuses_sender_weights():
    with pytest.raises(MixingError, match='symmetrized needs kind="doubly"'):
        symmetrized(MixingMatrix.from_dense([[0.2, 0.8], [0.1, 0.9]], kind="sender"))


# --- clique averaging ---
def test_clique_averaging_is_a_projection():
    """Averaging twice is averaging once; inside a clique all weights are 1/|C|, outside a node keeps to itself."""
    W = clique_averaging([(4, 0, 2), (1, 3)], complete(6)).to_dense()
    np.testing.assert_allclose(W @ W, W, atol=1e-15)
    np.testing.assert_allclose(W[np.ix_([0, 2, 4], [0, 2, 4])], 1 / 3)
    np.testing.assert_allclose(W[np.ix_([1, 3], [1, 3])], 1 / 2)
    assert W[5, 5] == 1
    assert np.linalg.matrix_rank(W) == 3


def test_clique_averaging_makes_its_own_graph():
    W = clique_averaging([(0, 1, 2), (), (3, 4)])
    assert W.graph == Graph(5, [(0, 1), (0, 2), (1, 2), (3, 4)])
    np.testing.assert_array_equal(clique_averaging([]).to_dense(), [[1]])


def test_clique_averaging_refuses_what_is_no_clique():
    with pytest.raises(MixingError, match="node 1 is in two cliques; clique averaging needs disjoint cliques"):
        clique_averaging([(0, 1), (1, 2)])
    with pytest.raises(MixingError, match=r"node 7 is in a clique, but the nodes are 0\.\.3"):
        clique_averaging([(0, 7)], ring(4))
    with pytest.raises(MixingError, match=r"W\[0, 2\] = 0\.333333, but node 0 has no edge to node 2"):
        clique_averaging([(0, 1, 2)], ring(4))


# --- weights per edge ---
@settings(max_examples=60)
@given(graph=graphs(1, 10), seed=st.integers(0, 2**32 - 1))
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
    one_way_more = from_edge_weights(
        ring(3), {(0, 1): 0.3, (1, 0): 0.1, (1, 2): 0.3, (2, 1): 0.1, (2, 0): 0.3, (0, 2): 0.1}
    )
    np.testing.assert_allclose(one_way_more.to_dense(), [[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
    assert from_edge_weights(chain(2), {(1, 0): 0.2}) == from_edge_weights(chain(2), {(0, 1): 0.2})
    np.testing.assert_array_equal(from_edge_weights(ring(4), {}).to_dense(), np.eye(4))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({(0, 2): 0.1}, r"a weight is given for \(0, 2\), but node 0 has no edge to node 2; drop it"),
        ({(0, 9): 0.1}, r"a weight is given for \(0, 9\)"),
        ({(1, 1): 0.1}, r"a weight is given for \(1, 1\), but a loop takes what is left of its row; drop it"),
        ([0.1, 0.1], "2 weights for 4 edges; give one per entry of graph.edges"),
        (
            {(0, 1): 0.7, (1, 2): 0.6},
            r"the weights on the edges of node 1 sum to 1\.3, which leaves -0\.3 for itself; .*scale them down",
        ),
        ({(0, 1): -0.1}, r"W\[0, 1\] = -0\.1; weights lie between 0 and 1"),
        ({(0, 1): float("nan")}, "= nan; weights lie between 0 and 1"),
    ],
)
def test_from_edge_weights_refusals(weights, message):
    with pytest.raises(MixingError, match=message):
        from_edge_weights(ring(4), weights)


def test_from_edge_weights_forgives_rounding():
    """Ten weights of 0.1 sum to a little less than 1, three of 1/3 may sum to more."""
    W = from_edge_weights(star(11), np.full(10, 0.1))
    assert W[0, 0] == pytest.approx(0, abs=1e-15)
    assert W[0, 0] >= 0


# --- fastest mixing ---
def common_weight_gap(graph: Graph) -> float:
    """The best gap with one weight w on all edges: W = I − wL, so min_w max(|1 − wλ_2|, |1 − wλ_n|), and w d ≤ 1.

    If every edge can be mapped to every other by a symmetry, averaging an optimum over the symmetries makes all its
    weights equal without making it worse (the norm is convex), so this is the optimum over all weights.
    """
    L = np.diag(graph.degrees) - graph.adjacency.toarray()
    laplacian = np.linalg.eigvalsh(L)
    w = np.linspace(0, 1 / max(graph.degrees), 200_001)
    norms = np.maximum(np.abs(1 - w * laplacian[1]), np.abs(1 - w * laplacian[-1]))
    return float(1 - norms.min())


@pytest.mark.parametrize(
    "graph", [ring(3), ring(5), ring(8), ring(16), star(3), star(4), star(9), hypercube(3), torus(4, 4)]
)
def test_optimal_gap_on_graphs_whose_edges_are_all_alike(graph):
    assert spectral_gap(optimal_gap(graph)) == pytest.approx(common_weight_gap(graph), abs=2e-5)  # grid and solver


def test_optimal_gap_closed_forms():
    """Even ring: 1 − wλ_2 = wλ_n − 1 with λ_2 = 2 − 2 cos(2π/n), λ_n = 4; a star's hub gives 1/(n − 1) to each leaf."""
    n = 12
    slowest = 2 - 2 * np.cos(2 * np.pi / n)
    assert optimal_gap(ring(n))[0, 1] == pytest.approx(2 / (slowest + 4), abs=1e-5)
    assert spectral_gap(optimal_gap(ring(n))) == pytest.approx(1 - (4 - slowest) / (4 + slowest), abs=1e-6)
    assert spectral_gap(optimal_gap(star(8))) == pytest.approx(1 / 7, abs=1e-6)
    assert spectral_gap(optimal_gap(chain(2))) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_optimal_gap_on_a_complete_graph_is_full_averaging(n):
    W = optimal_gap(complete(n))
    assert spectral_gap(W) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(W.to_dense(), 1 / n, atol=1e-6)


@settings(max_examples=25)
@given(graph=connected_graphs(2, 12))
def test_optimal_gap_is_no_slower_than_any_other_symmetric_weights(graph):
    W = optimal_gap(graph)
    assert_symmetric_doubly_stochastic(W, graph)
    gap = spectral_gap(W)
    seeds = np.random.default_rng(0)
    random_weights = from_edge_weights(graph, seeds.dirichlet(np.ones(len(graph.edges) + 1))[:-1])
    for other in (metropolis_hastings(graph), max_degree(graph), lazy(metropolis_hastings(graph)), random_weights):
        assert gap >= spectral_gap(other) - 1e-6  # the solver's accuracy


def least_norm(graph: Graph) -> float:
    """min ‖W − J‖₂ over symmetric mixing matrices by CVXPY, with all n² entries of W as variables."""
    n = graph.n
    W = cp.Variable((n, n), symmetric=True)
    off_graph = 1 - np.eye(n) - graph.adjacency.toarray()
    constraints = [cp.sum(W, axis=1) == 1, W >= 0, cp.multiply(off_graph, W) == 0]
    return float(cp.Problem(cp.Minimize(cp.sigma_max(W - 1 / n)), constraints).solve(solver=cp.CLARABEL))


def assert_optimal(graph: Graph) -> None:
    W = optimal_gap(graph)
    assert_symmetric_doubly_stochastic(W, graph)
    assert 1 - spectral_gap(W) == pytest.approx(least_norm(graph), abs=1e-6)  # both stop at about 1e-8


@settings(max_examples=40)
@given(graph=connected_graphs(2, 12))
def test_optimal_gap_is_what_cvxpy_finds(graph):
    assert_optimal(graph)


@pytest.mark.parametrize(
    "graph",
    [chain(9), star(12), complete(9), grid(3, 5), random_connected(16), random_connected(20, 0.1, seed=2), ring(17)],
    ids=str,
)
def test_optimal_gap_is_what_cvxpy_finds_on_named_graphs(graph):
    assert_optimal(graph)


def test_optimal_gap_on_the_graphs_of_the_paper():
    gaps = {}
    for graph in (random_connected(16), social_network()):
        gaps[graph.n] = spectral_gap(optimal_gap(graph)), spectral_gap(metropolis_hastings(graph))
    for fastest, local in gaps.values():
        assert fastest > 1.1 * local


def test_optimal_gap_is_cached_per_graph():
    assert optimal_gap(ring(6)) is optimal_gap(Graph(6, ring(6).edges))


def test_optimal_gap_refusals():
    with pytest.raises(
        MixingError, match=r"2 components, so its spectral gap is 0 whatever the weights; take metropolis"
    ):
        optimal_gap(Graph(4, [(0, 1), (2, 3)]))


# --- what the weights are for ---
@settings(max_examples=40)
@given(graph=connected_graphs(2, 10))
def test_every_builder_reaches_consensus_on_a_connected_graph(graph):
    """W^k → J for lazy weights on any connected graph; 1e-10: rounding, raised to the power 4⁷."""
    W = lazy(metropolis_hastings(graph)).to_dense()
    powers = [np.linalg.matrix_power(W, 4**k) for k in range(8)]
    distances = [np.linalg.norm(P - 1 / graph.n, 2) for P in powers]
    assert all(after <= before + 1e-10 for before, after in pairwise(distances))
    assert distances[-1] < 1e-8
