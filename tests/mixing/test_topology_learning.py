"""STL-FW: falls at every step, as fast as promised, with as few neighbors as promised, in our orientation."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from builders import cases, gme_objective, refused, scaled
from mixwise.errors import MixingError
from mixwise.graphs import Graph, complete, directed_ring, ring
from mixwise.mixing import gram_matrix, learn_topology, metropolis_hastings, minimize_gme, topology_from_gram
from strategies import gram_matrices, graphs


def label_shares(n: int, classes: int, alpha: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(classes, alpha), n)


def g(W: np.ndarray, shares: np.ndarray, penalty: float) -> float:
    """(1/n) ‖WᵀΠ − JΠ‖² + (λ/n) ‖W − J‖²: node j hears column j of W."""
    n = len(shares)
    return float(((W.T @ shares - shares.mean(0)) ** 2).sum() + penalty * ((W - 1 / n) ** 2).sum()) / n


CASES = {
    "n": st.integers(1, 24),
    "classes": st.integers(1, 10),
    "alpha": st.sampled_from([0.05, 0.3, 5.0]),
    "penalty": st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    "seed": st.integers(0, 1000),
}


@given(**CASES)
def test_falls_at_every_step_within_the_bound_and_the_budget(n, classes, alpha, penalty, seed):
    shares = label_shares(n, classes, alpha, seed)
    spread = float(((shares - shares.mean(0)) ** 2).sum()) / n
    values = []
    for steps in range(9):
        W = learn_topology(shares, steps, penalty)
        assert max(W.graph.degrees) <= steps
        assert max(W.graph.in_degrees) <= steps
        values.append(g(W.to_dense(), shares, penalty))
        assert values[-1] <= 16 / (steps + 2) * (penalty + spread) + 1e-12
    assert (np.diff(values) <= 1e-12).all()


@given(n=st.integers(2, 14), penalty=st.sampled_from([0.05, 0.5]), seed=st.integers(0, 1000))
def test_every_step_goes_to_the_best_permutation_as_far_as_it_helps(n, penalty, seed):
    """Frank-Wolfe in our orientation, ∇g = (2/n)(Γ W + λ (W − J)), from its two conditions."""
    shares = label_shares(n, 6, 1.0, seed)
    centered = shares - shares.mean(0)
    found = [learn_topology(shares, steps, penalty).to_dense() for steps in range(6)]
    for before, after in pairwise(found):
        if np.abs(after - before).max() < 1e-9:
            continue  # it has arrived
        slope, end_slope = (centered @ (centered.T @ W) + penalty * (W - 1 / n) for W in (before, after))
        least = slope[linear_sum_assignment(slope)].sum()
        D = after - before  # γ (P − W)
        gamma = (slope * D).sum() / (least - (slope * before).sum())
        P = before + D / gamma
        np.testing.assert_allclose(np.sort(P, axis=1), np.sort(np.eye(n), axis=1), atol=1e-6)
        assert gamma <= 1 + 1e-9
        if gamma < 1 - 1e-9:  # no further descent along D
            assert (end_slope * D).sum() == pytest.approx(0, abs=1e-9)


def test_one_label_per_node_becomes_unbiased_with_one_step_per_other_label():
    """n = 20 nodes of 5 labels: 4 neighbors are the least with which a node can see all labels."""
    shares = np.eye(5)[np.arange(20) % 5]
    W = learn_topology(shares, 4, 0.0).to_dense()
    np.testing.assert_allclose(W.T @ shares, 0.2, atol=1e-9)
    assert g(metropolis_hastings(ring(20)).to_dense(), shares, 0.0) > 0.02  # a ring of 20 sees three labels of five


@settings(max_examples=30)
@given(data=st.data(), n=st.integers(2, 16), penalty=st.sampled_from([0.0, 0.1, 1.0]))
def test_from_a_gram_matrix_it_falls_to_the_optimum_of_gme_opt(data, n, penalty):
    """Frank-Wolfe's bound, with the optimum of the complete graph from another solver."""
    gram = data.draw(gram_matrices(n, min_rank=1))

    def f(W):
        return (gme_objective(scaled(gram), W, penalty) - penalty) / n  # ‖W − J‖² = ‖W‖² − 1

    optimum = f(minimize_gme(gram, complete(n), regularization=penalty).W.to_dense())
    values = [f(topology_from_gram(gram, steps, penalty).to_dense()) for steps in (0, 1, 2, 4, 8, 16)]
    assert (np.diff(values) <= 1e-12).all()
    for steps, value in zip((0, 1, 2, 4, 8, 16), values, strict=True):
        assert optimum - 1e-7 <= value <= optimum + 16 / (steps + 2) * (1 + penalty) + 1e-9


@settings(max_examples=30)
@given(data=st.data(), graph=graphs(2, 12))
def test_allowed_arcs_are_kept_and_gme_opt_on_them_is_the_limit(data, graph):
    gram = data.draw(gram_matrices(graph.n, min_rank=1))
    W = topology_from_gram(gram, 60, 0.1, allowed=graph)
    arcs = set(zip(graph.pattern.rows.tolist(), graph.pattern.cols.tolist(), strict=True))
    assert set(W.edge_weights) <= arcs
    best, found = (
        gme_objective(scaled(gram), M.to_dense(), 0.1) for M in (minimize_gme(gram, graph, regularization=0.1).W, W)
    )
    # 2 C / (l + 2) with the curvature C ≤ 8 n + 4 λ n of the function without its factor 1/n.
    assert best - 1e-6 <= found <= best + 2 * (8 + 0.4) * graph.n / 62


def test_labels_and_their_gram_matrix_give_the_same_topology():
    shares = label_shares(15, 10, 0.1, 3)
    gram = gram_matrix(shares)
    from_gram = topology_from_gram(gram, 5, 0.1 / (np.trace(gram) / 15))
    # Of two assignments with the same cost either may be taken, so what they have in common is what they achieve.
    achieved = [g(W.to_dense(), shares, 0.1) for W in (from_gram, learn_topology(shares, 5, 0.1))]
    assert achieved[0] == pytest.approx(achieved[1], rel=1e-9)


def test_equal_nodes_spread_out():
    """Without differences the regularizer decides, and two nodes average."""
    np.testing.assert_allclose(learn_topology([[1.0], [1.0]], 1).to_dense(), 0.5)
    np.testing.assert_array_equal(learn_topology([[1.0]], 3).to_dense(), [[1.0]])
    np.testing.assert_array_equal(topology_from_gram(np.eye(3), 0).to_dense(), np.eye(3))


@cases(
    "call, message",
    (lambda: learn_topology([[1, 2], [3, 4]], 1), r"node 0 are \[1.0, 2.0\]; .* divide counts by their row sums"),
    (lambda: learn_topology([[1.0, 0.0], [np.nan, 1.0]], 1), "label proportions of node 1"),
    (lambda: learn_topology([[1.5, -0.5]], 1), "label proportions of node 0"),
    (lambda: learn_topology([1.0, 2.0], 1), r"got shape \(2,\)"),
    (lambda: topology_from_gram(np.eye(3), -1), "steps = -1"),
    (lambda: topology_from_gram(np.eye(3), 1, -0.1), "regularization = -0.1"),
    (lambda: topology_from_gram(np.eye(3), 1, allowed=directed_ring(4)), r"has shape \(3, 3\), but for 4 nodes"),
    (lambda: learn_topology(np.eye(3), 1, allowed=Graph(2, [])), "allowed arcs has 2 nodes, but there are 3"),
)
def test_refusals(call, message):
    refused(MixingError, message, call)
