"""The optimal spectral gap: what CVXPY finds, closed forms, and the bundle method close to the semidefinite program."""

import warnings
from types import SimpleNamespace

import clarabel
import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings

import mixwise.graphs as g
import mixwise.mixing as m
from builders import ONE_WAY_RING, TWO_PAIRS, assert_symmetric_doubly_stochastic, laplacian, refused
from mixwise.errors import GraphError, SolverError
from mixwise.graphs import Graph
from mixwise.mixing import from_edge_weights, gap_weights, metrics, metropolis_hastings, optimal_gap, spectral_gap
from mixwise.mixing.gap_weights import approximate_weights
from strategies import connected_graphs

COMPARED = [g.ring(16), g.ring(31), g.torus(3, 7), g.grid(4, 6), g.random_connected(16), g.random_regular(30, 4)]
COMPARED += [g.random_connected(28, 0.2, seed=1), g.random_connected(30, 0.1), g.small_world(30, 4, 0.3)]
COMPARED += [g.random_geometric(24, 0.45, seed=1), g.social_network(), g.star(20)]


def norm(graph: Graph, w: np.ndarray) -> float:
    return 1 - spectral_gap(from_edge_weights(graph, w))  # a MixingMatrix, so w is feasible


# --- the semidefinite program ---
def least_norm(graph: Graph) -> tuple[float, float]:
    """min ‖W − J‖₂ over symmetric mixing matrices by CVXPY, with all n² entries of W as variables; and its accuracy."""
    n = graph.n
    W = cp.Variable((n, n), symmetric=True)
    off_graph = 1 - np.eye(n) - graph.adjacency.toarray()
    constraints = [cp.sum(W, axis=1) == 1, W >= 0, cp.multiply(off_graph, W) == 0]
    problem = cp.Problem(cp.Minimize(cp.sigma_max(W - 1 / n)), constraints)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")  # of some graphs
        least = float(problem.solve(solver=cp.CLARABEL))
    return least, 1e-6 if problem.status == cp.OPTIMAL else 1e-4  # it stops at about 1e-8, or at reduced accuracy


def assert_optimal(graph: Graph) -> None:
    W = optimal_gap(graph)
    assert_symmetric_doubly_stochastic(W, graph)
    least, accuracy = least_norm(graph)
    assert 1 - spectral_gap(W) == pytest.approx(least, abs=accuracy)


@settings(max_examples=40)
@given(graph=connected_graphs(2, 12))
def test_what_cvxpy_finds_and_no_slower_than_other_weights(graph):
    assert_optimal(graph)
    drawn = from_edge_weights(graph, np.random.default_rng(0).dirichlet(np.ones(len(graph.edges) + 1))[:-1])
    for other in (metropolis_hastings(graph), m.max_degree(graph), m.lazy(metropolis_hastings(graph)), drawn):
        assert spectral_gap(optimal_gap(graph)) >= spectral_gap(other) - 1e-6  # the solver's accuracy


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_complete_graph_averages(n):
    W = optimal_gap(g.complete(n))
    assert optimal_gap(Graph(n, g.complete(n).edges)) is W  # one per graph
    assert spectral_gap(W) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(W.to_dense(), 1 / n, atol=1e-6)


def test_errors():
    refused(GraphError, r"2 components, but optimal_gap needs a connected graph; add edges", optimal_gap, TWO_PAIRS)
    refused(GraphError, "optimal_gap needs an undirected graph", optimal_gap, ONE_WAY_RING)


def test_a_program_that_was_not_solved_is_reported(monkeypatch):
    failed = SimpleNamespace(status="MaxIterations", x=np.full(6, 0.1))
    monkeypatch.setattr(clarabel, "DefaultSolver", lambda *_: SimpleNamespace(solve=lambda: failed))
    refused(SolverError, "MaxIterations", gap_weights._optimal_gap.__wrapped__, g.ring(5))


# --- the bundle method ---
@pytest.mark.parametrize("graph", COMPARED, ids=str)
def test_within_one_percent_of_the_semidefinite_program(graph):
    """In the norm as in the gap."""
    best, found = 1 - spectral_gap(optimal_gap(graph)), norm(graph, approximate_weights(graph))
    assert found <= 1.01 * best
    assert 1 - found >= 0.99 * (1 - best)
    assert found >= best - 1e-5  # the program's own accuracy


@settings(max_examples=40)
@given(graph=connected_graphs(2, 12))
def test_never_worse_than_metropolis_hastings_and_close_to_the_best(graph):
    found = norm(graph, approximate_weights(graph))
    assert found <= 1 - spectral_gap(metropolis_hastings(graph)) + 1e-9
    # 1e-5 for the program's own accuracy; it is all there is where full averaging is possible and the norm is 0.
    assert found <= 1.01 * (1 - spectral_gap(optimal_gap(graph))) + 1e-5


@pytest.mark.parametrize("graph", [g.ring(65), g.ring(300), g.torus(8, 8), g.torus(9, 9)])
def test_large_graphs_whose_edges_are_all_alike(graph):
    """By convexity one weight for all edges is best: ‖W − J‖ = (λ_n − λ₂) / (λ_n + λ₂), if no loop becomes negative."""
    values = np.linalg.eigvalsh(laplacian(graph))
    best = (values[-1] - values[1]) / (values[-1] + values[1])
    assert 2 / (values[-1] + values[1]) <= 1 / graph.degrees[0]
    assert norm(graph, approximate_weights(graph)) == pytest.approx(best, rel=1e-6)


def test_closed_forms_of_100_nodes():
    """The best weights of a path are 1/2 on every edge (Boyd et al., 2009): ‖W − J‖ = cos(π/n)."""
    assert spectral_gap(optimal_gap(g.star(100))) == pytest.approx(1 / 99, rel=1e-3)
    assert spectral_gap(optimal_gap(g.complete(70))) == pytest.approx(1, abs=1e-6)
    assert spectral_gap(optimal_gap(g.chain(100))) == pytest.approx(1 - np.cos(np.pi / 100), rel=1e-2)


def test_a_thousand_nodes():
    """A torus of unequal sides: its two kinds of edges want different weights. The gap is 1.7 times that of M-H."""
    graph = g.torus(25, 40)
    W = optimal_gap(graph)
    assert W.is_symmetric
    assert spectral_gap(W) > 1.7 * spectral_gap(metropolis_hastings(graph))
    assert optimal_gap(g.torus(25, 40)) is W


def test_a_stalled_program_keeps_the_best_so_far(monkeypatch):
    graph = g.random_connected(20, 0.3)
    monkeypatch.setattr(gap_weights, "_solved_round", lambda *_: None)
    assert norm(graph, approximate_weights(graph)) <= 1 - spectral_gap(metropolis_hastings(graph)) + 1e-9


@pytest.mark.parametrize("graph", [g.random_connected(30, 0.2), g.ring(17), g.torus(4, 5), g.chain(2)])
def test_ends_of_the_spectrum_dense_and_sparse(graph, monkeypatch):
    weights = np.random.default_rng(0).random(len(graph.edges)) + 0.1
    L = metrics.laplacian(graph.n, graph.edge_array, weights)
    values, count = np.linalg.eigvalsh(L.toarray()), min(3, graph.n - 1)
    for limit in (400, 0) if graph.n > 2 else (400,):
        monkeypatch.setattr(metrics, "_DENSE_LAPLACIAN", limit)
        (low, v), (high, u) = metrics.lowest(L, 3), metrics.highest(L, 3)
        np.testing.assert_allclose(low, values[1 : 1 + count], atol=1e-8)
        np.testing.assert_allclose(high, values[::-1][:count], atol=1e-5)  # Lanczos ends at 1e-6
        np.testing.assert_allclose((v * (L @ v)).sum(axis=0), low, atol=1e-8)
        np.testing.assert_allclose(v.sum(axis=0), 0, atol=1e-8)
        np.testing.assert_allclose((u * (L @ u)).sum(axis=0), high, atol=1e-5)
