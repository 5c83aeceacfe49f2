"""Placement: the search never makes it worse, and finds the best where all placements can be tried."""

from itertools import permutations, product
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixwise.mixing as mx
from builders import ONE_WAY_RING, TWO_PAIRS, cases, normal_rows, refused
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, ring, star, torus
from strategies import connected_graphs, gram_matrices


def error(gram: np.ndarray, W: np.ndarray, order=None) -> float:
    """Tr(WᵀΓ[order, order]W)."""
    order = np.arange(len(gram)) if order is None else np.asarray(order)
    return float(np.trace(W.T @ gram[np.ix_(order, order)] @ W))


# --- one swap ---
@given(data=st.data(), n=st.integers(2, 8), seed=st.integers(0, 2**32 - 1))
def test_the_change_of_every_swap_is_the_difference_of_the_errors(data, n, seed):
    """The formula for Δ(a, b) against Σ M∘Γ recomputed for each swap."""
    M = normal_rows(n, n, seed)
    M, G = M @ M.T, data.draw(gram_matrices(n))
    changes = mx.placement._swap_changes(M, G)
    for a, b in product(range(n), repeat=2):
        swapped = np.arange(n)
        swapped[[a, b]] = swapped[[b, a]]
        expected = (M * G[np.ix_(swapped, swapped)]).sum() - (M * G).sum()
        assert changes[a, b] == pytest.approx(expected, abs=1e-12 * np.abs(M).max() * np.abs(G).max() * n**2)


# --- fixed weights ---
@given(data=st.data(), graph=connected_graphs(1, 10), restarts=st.integers(1, 3))
def test_search_is_never_worse_than_leaving_the_nodes_where_they_are(data, graph, restarts):
    gram, W = data.draw(gram_matrices(graph.n)), mx.metropolis_hastings(graph)
    found = mx.search_placement(gram, W, restarts=restarts)
    slack = 1e-9 * np.trace(gram)
    assert sorted(found.order) == list(range(graph.n))
    assert found.objective <= error(gram, W.to_dense()) + slack
    assert found.objective == pytest.approx(error(gram, W.to_dense(), found.order), abs=slack)
    # The same error, seen from the nodes: their own Γ, with the weights between them.
    assert found.mixing.graph == found.graph == graph.permuted(found.order)
    assert found.objective == pytest.approx(error(gram, found.mixing.to_dense()), abs=slack)


@pytest.mark.parametrize(
    "graph", [chain(4), star(5), ring(6), Graph(6, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5)])]
)
@pytest.mark.parametrize("seed", range(6))
def test_search_finds_the_best_of_all_placements_of_few_nodes(graph, seed):
    """Up to 720 orders, tried one by one; 8 starts of a swap search reach the best of them."""
    gram = mx.gram_matrix(normal_rows(graph.n, 3, seed))
    W = mx.metropolis_hastings(graph).to_dense()
    best = min(error(gram, W, order) for order in permutations(range(graph.n)))
    assert mx.search_placement(gram, mx.metropolis_hastings(graph)).objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1e30, 1e300])
def test_the_unit_does_not_matter(unit):
    gram = mx.gram_matrix(normal_rows(9, 3, seed=1))
    W = mx.metropolis_hastings(torus(3, 3))
    for search, rel in (
        (lambda Gamma: mx.search_placement(Gamma, W), 1e-9),
        (lambda Gamma: mx.optimize_placement(Gamma, W.graph, restarts=2), 1e-6),
    ):
        assert search(gram) == search(gram)  # the same seed
        assert search(gram * unit).objective / unit == pytest.approx(search(gram).objective, rel=rel)


def test_no_heterogeneity_leaves_the_nodes_where_they_are():
    found = mx.search_placement(np.zeros((5, 5)), mx.metropolis_hastings(ring(5)))
    assert (found.order, found.objective) == ((0, 1, 2, 3, 4), 0)
    assert mx.optimize_placement(np.zeros((5, 5)), ring(5)).objective == 0


# --- placement and weights together ---
@given(data=st.data(), graph=connected_graphs(1, 8))
def test_optimized_placement_is_never_worse_than_gme_opt(data, graph):
    gram = data.draw(gram_matrices(graph.n))
    found = mx.optimize_placement(gram, graph, restarts=2)
    slack = 1e-7 * np.trace(gram)  # of two solves
    assert found.objective <= mx.minimize_gme(gram, graph).objective + slack
    assert found.objective == pytest.approx(error(gram, found.mixing.to_dense()), abs=slack)
    assert found.W.graph == graph


@pytest.mark.parametrize("seed", range(4))
def test_optimized_placement_against_all_placements_of_four_nodes(seed):
    gram = mx.gram_matrix(normal_rows(4, 2, seed))
    for graph in (chain(4), star(4), ring(4)):
        best = min(mx.minimize_gme(gram, graph.permuted(order)).objective for order in mx.distinct_placements(graph))
        assert mx.optimize_placement(gram, graph).objective <= best + 1e-7 * np.trace(gram)


# --- which placements differ ---
@cases(
    "graph, count",
    *((chain(4), 12), (star(4), 4), (complete(4), 1), (ring(4), 3), (ring(5), 12), (complete(1), 1), (chain(2), 1)),
    *((TWO_PAIRS, 3), (ONE_WAY_RING, 2)),
)
def test_distinct_placements(graph, count):
    """n! divided by the number of symmetries of the graph."""
    orders = mx.distinct_placements(graph)
    every = {graph.permuted(order) for order in permutations(range(graph.n))}
    assert len(orders) == len({graph.permuted(order) for order in orders}) == len(every) == count
    assert factorial(graph.n) % count == 0


# --- refusals ---
def test_refusals():
    W, bad = mx.metropolis_hastings(ring(4)), np.eye(4)
    bad[1, 2] = bad[2, 1] = np.nan
    for search in (lambda gram: mx.search_placement(gram, W), lambda gram: mx.optimize_placement(gram, W.graph)):
        refused(MixingError, r"the Gram matrix has shape \(3, 3\), but for 4 nodes it must be", search, np.eye(3))
        refused(MixingError, r"Γ\[1, 2\] = nan; a Gram matrix is finite", search, bad)
        refused(MixingError, "Γ is not symmetric", search, np.triu(np.ones((4, 4))))
    for search, place in ((mx.search_placement, W), (mx.optimize_placement, W.graph)):
        refused(MixingError, "restarts = 0; the search needs at least 1 start", search, np.eye(4), place, restarts=0)
    refused(MixingError, "9 nodes have 9! orders, too many to list; use search", mx.distinct_placements, ring(9))
