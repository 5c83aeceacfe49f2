"""The optimal spectral gap without a semidefinite program: close to it where both run, closed forms where it cannot."""

import numpy as np
import pytest
from hypothesis import given, settings

from mixwise.graphs import (
    Graph,
    chain,
    complete,
    grid,
    random_connected,
    random_geometric,
    random_regular,
    ring,
    small_world,
    social_network,
    star,
    torus,
)
from mixwise.mixing import from_edge_weights, metropolis_hastings, optimal_gap, spectral_gap
from mixwise.mixing.gap_weights import approximate_weights
from mixwise.mixing.solvers import spectral_bundle
from mixwise.mixing.spectra import highest, laplacian, lowest
from strategies import connected_graphs

COMPARED = {
    "ring 16": ring(16),
    "ring 31": ring(31),
    "torus 3 × 7": torus(3, 7),
    "grid 4 × 6": grid(4, 6),
    "half of complete 16": random_connected(16),
    "random 28": random_connected(28, 0.2, seed=1),
    "a tree and some more": random_connected(30, 0.1),
    "4-regular 30": random_regular(30, 4),
    "small world": small_world(30, 4, 0.3),
    "geometric": random_geometric(24, 0.45, seed=1),
    "social network": social_network(),
    "star": star(20),
}


def norm(graph: Graph, w: np.ndarray) -> float:
    return 1 - spectral_gap(from_edge_weights(graph, w))  # a MixingMatrix, so w is feasible


@pytest.mark.parametrize("graph", COMPARED.values(), ids=COMPARED.keys())
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


@pytest.mark.parametrize("graph", [ring(65), ring(300), torus(8, 8), torus(9, 9)])
def test_graphs_whose_edges_are_all_alike(graph):
    """By convexity one weight for all edges is best: ‖W − J‖ = (λ_n − λ₂) / (λ_n + λ₂), if no loop becomes negative."""
    values = np.linalg.eigvalsh(np.diag(graph.degrees) - graph.adjacency.toarray())
    best = (values[-1] - values[1]) / (values[-1] + values[1])
    assert 2 / (values[-1] + values[1]) <= 1 / graph.degrees[0]
    assert norm(graph, approximate_weights(graph)) == pytest.approx(best, rel=1e-6)


def test_star_and_complete_graph_of_100_nodes():
    assert spectral_gap(optimal_gap(star(100))) == pytest.approx(1 / 99, rel=1e-3)
    assert spectral_gap(optimal_gap(complete(70))) == pytest.approx(1, abs=1e-6)


def test_chain_of_100_nodes():
    """The best weights of a path are 1/2 on every edge (Boyd et al., 2009): ‖W − J‖ = cos(π/n)."""
    assert spectral_gap(optimal_gap(chain(100))) == pytest.approx(1 - np.cos(np.pi / 100), rel=1e-2)


def test_a_thousand_nodes():
    """A torus of unequal sides: its two kinds of edges want different weights. The gap is 1.7 times that of M-H."""
    graph = torus(25, 40)
    W = optimal_gap(graph)
    assert W.is_symmetric
    assert spectral_gap(W) > 1.7 * spectral_gap(metropolis_hastings(graph))
    assert optimal_gap(torus(25, 40)) is W


def test_a_stalled_program_keeps_the_best_so_far(monkeypatch):
    graph = random_connected(20, 0.3)
    monkeypatch.setattr(spectral_bundle._Program, "solve", lambda *_: None)
    assert norm(graph, approximate_weights(graph)) <= 1 - spectral_gap(metropolis_hastings(graph)) + 1e-9


@pytest.mark.parametrize("graph", [random_connected(30, 0.2), ring(17), torus(4, 5), chain(2)])
def test_ends_of_the_spectrum_dense_and_sparse(graph, monkeypatch):
    weights = np.random.default_rng(0).random(len(graph.edges)) + 0.1
    L = laplacian(graph.n, graph.edge_array, weights)
    values = np.linalg.eigvalsh(L.toarray())
    for limit in (400, 0) if graph.n > 2 else (400,):
        monkeypatch.setattr("mixwise.mixing.spectra._DENSE_LIMIT", limit)
        low, v = lowest(L, 3)
        high, u = highest(L, 3)
        count = min(3, graph.n - 1)
        np.testing.assert_allclose(low, values[1 : 1 + count], atol=1e-8)
        np.testing.assert_allclose(high, values[::-1][:count], atol=1e-5)  # Lanczos ends at 1e-6
        np.testing.assert_allclose((v * (L @ v)).sum(axis=0), low, atol=1e-8)
        np.testing.assert_allclose(v.sum(axis=0), 0, atol=1e-8)
        np.testing.assert_allclose((u * (L @ u)).sum(axis=0), high, atol=1e-5)
