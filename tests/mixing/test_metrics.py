"""Metrics equal their definitions, for NumPy and torch, narrow and wide rows, few and many nodes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixwise.graphs as g
import mixwise.mixing as mx
from builders import asymmetric, normal_rows, refused
from mixwise.errors import MixingError
from mixwise.graphs import Graph
from strategies import connected_graphs

seeds = st.integers(0, 2**32 - 1)


# --- definitions ---
@given(graph=connected_graphs(1, 10), seed=seeds, d=st.integers(1, 7))
def test_metrics_equal_their_definitions(graph, seed, d):
    """Written with explicit loops over nodes; equal up to rounding in the last digits."""
    n = graph.n
    G = normal_rows(n, d, seed)
    W = mx.minimize_gme(mx.gram_matrix(G), graph).W
    mean = sum(G[i] for i in range(n)) / n
    mixed = [sum(W[i, j] * (G[i] - mean) for i in range(n)) for j in range(n)]  # what node j ends with
    gme = sum(float(v @ v) for v in mixed)
    zeta_sq = sum(float((G[i] - mean) @ (G[i] - mean)) for i in range(n)) / n
    assert mx.gradient_mixing_error(G, W) == pytest.approx(gme, rel=1e-10, abs=1e-20)
    assert mx.relative_heterogeneity(G, W) == pytest.approx(gme / n, rel=1e-10, abs=1e-20)
    assert mx.heterogeneity(G) == pytest.approx(zeta_sq, rel=1e-10, abs=1e-20)
    assert mx.consensus_distance(G) == mx.heterogeneity(G)
    Gamma = mx.gram_matrix(G)
    inner = [[float((G[i] - mean) @ (G[j] - mean)) for j in range(n)] for i in range(n)]
    np.testing.assert_allclose(Gamma, inner, atol=1e-12)
    assert np.trace(W.to_dense().T @ Gamma @ W.to_dense()) == pytest.approx(gme, rel=1e-9, abs=1e-12)


@given(graph=connected_graphs(2, 10), seed=seeds)
def test_numpy_torch_and_every_form_of_w_agree(graph, seed):
    G = normal_rows(graph.n, 5, seed)
    W = mx.minimize_gme(mx.gram_matrix(G), graph).W
    forms = [W, W.to_dense(), torch.from_numpy(W.to_dense())]
    rows = [G, torch.from_numpy(G), torch.from_numpy(G).requires_grad_(), np.asfortranarray(G)]
    for metric in (mx.gradient_mixing_error, mx.relative_heterogeneity):
        values = [metric(r, form) for r in rows for form in forms]
        np.testing.assert_allclose(values, values[0], rtol=1e-12, atol=1e-20)  # atol: where W leaves nothing
        assert all(isinstance(value, float) for value in values)
    for single in (mx.heterogeneity, mx.consensus_distance):
        np.testing.assert_allclose([single(r) for r in rows], single(G), rtol=1e-12)
    for r in rows:
        assert isinstance(mx.gram_matrix(r), np.ndarray)
        np.testing.assert_allclose(mx.gram_matrix(r), mx.gram_matrix(G), rtol=1e-12, atol=1e-12)
    for of_w in (mx.consensus_factor, mx.spectral_gap):
        np.testing.assert_allclose([of_w(form) for form in forms], of_w(W), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_short_floats_are_summed_in_float64(dtype):
    """1e4 + small differences, squared: float32 sums would lose them; the metrics lose only what the rows had lost."""
    G = (1000 + torch.arange(12.0).reshape(4, 3)).to(dtype)
    exact = G.to(torch.float64)
    assert mx.heterogeneity(G) == mx.heterogeneity(exact)
    W = mx.metropolis_hastings(g.ring(4))
    assert mx.gradient_mixing_error(G, W) == mx.gradient_mixing_error(exact, W)
    np.testing.assert_array_equal(mx.gram_matrix(G), mx.gram_matrix(exact))
    rounded = torch.from_numpy(W.to_dense()).to(dtype)
    for form in (rounded, rounded.float().numpy()):
        assert mx.spectral_gap(form) == mx.spectral_gap(rounded.double().numpy())


@pytest.mark.parametrize("n", [1, 4, 65, 100])  # above 64 nodes W is applied as a sparse matrix
@pytest.mark.parametrize("d", [1, 3000, 70_000])  # the columns are read in blocks of 2¹⁸ numbers
def test_wide_rows_are_read_block_by_block(n, d):
    assert d < 70_000 or n * d > mx.arrays._BLOCK or n == 1
    G = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    exact = G.double().numpy() - G.double().numpy().mean(axis=0)
    W = mx.metropolis_hastings(g.ring(n))
    assert mx.gradient_mixing_error(G, W) == pytest.approx(float(((W.to_dense().T @ exact) ** 2).sum()), rel=1e-10)
    assert mx.heterogeneity(G) == pytest.approx(float((exact**2).sum()) / n, rel=1e-10)
    np.testing.assert_allclose(mx.gram_matrix(G), exact @ exact.T, rtol=1e-9, atol=1e-9 * d)


def test_rows_without_columns_do_not_disagree_and_there_is_one_row_per_node():
    G = np.empty((3, 0))
    assert mx.heterogeneity(G) == mx.gradient_mixing_error(G, np.eye(3)) == mx.gram_matrix(G).max() == 0
    for shape in ((4,), (4, 2, 2)):
        rule = r"one row per node, an array of shape \(n, d\); got shape"
        refused(MixingError, rule, mx.heterogeneity, np.ones(shape))


# --- how well W mixes ---
@given(n=st.integers(2, 10), seed=seeds)
def test_consensus_factor_and_spectral_gap(n, seed):
    """p = 1 − σ² and δ = 1 − σ with σ the largest singular value of W − J, and δ ≤ p."""
    W = asymmetric(n, seed)
    symmetric = mx.metropolis_hastings(g.random_connected(n, max(0.5, 2 / n), seed % 100))
    assert mx.spectral_gap(symmetric) == pytest.approx(1 - abs(mx.eigenvalues(symmetric)[1]), abs=1e-12)
    sigma = np.sqrt(np.linalg.eigvalsh((W.to_dense() - 1 / n) @ (W.to_dense() - 1 / n).T)[-1].clip(min=0))
    assert mx.spectral_gap(W) == pytest.approx(1 - sigma, abs=1e-7)  # the root of a rounded 0
    assert mx.consensus_factor(W) == pytest.approx(1 - sigma**2, abs=1e-12)
    assert mx.spectral_gap(W) <= mx.consensus_factor(W) + 1e-12


def test_extremes():
    assert mx.consensus_factor(np.full((5, 5), 0.2)) == pytest.approx(1, abs=1e-15)
    assert mx.consensus_factor(np.eye(5)) == pytest.approx(0, abs=1e-15)
    assert mx.spectral_gap(mx.metropolis_hastings(Graph(1, []))) == 1
    assert mx.spectral_gap(mx.metropolis_hastings(Graph(4, [(0, 1), (2, 3)]))) == pytest.approx(0, abs=1e-15)


def test_consensus_factor_of_a_random_w_closed_forms():
    identity, average = np.eye(6), np.full((6, 6), 1 / 6)
    assert mx.consensus_factor([identity, average], [0.7, 0.3]) == pytest.approx(0.3, abs=1e-12)
    assert mx.consensus_factor([identity, average]) == pytest.approx(0.5, abs=1e-12)
    W = asymmetric(6)
    assert mx.consensus_factor([W]) == pytest.approx(mx.consensus_factor(W), abs=1e-12)
    # One edge at a time: E[W Wᵀ] = E[W] for these projections, and E[W] = I − L / (2 |E|).
    gossip = [mx.clique_averaging([edge], g.ring(6)) for edge in g.ring(6).edges]
    assert mx.consensus_factor(gossip) == pytest.approx((2 - 2 * np.cos(2 * np.pi / 6)) / (2 * 6), abs=1e-12)


def test_a_random_w_needs_matrices_and_one_probability_each():
    for chances in ([0.5], [0.5, 0.6], [1.5, -0.5], [np.nan, 1.0]):
        rule = r"probabilities = \[.*\]; give one per matrix, none negative, with sum 1"
        refused(MixingError, rule, mx.consensus_factor, [np.eye(3), np.eye(3)], chances)
    refused(MixingError, "consensus_factor of no matrix", mx.consensus_factor, [])


# --- many nodes ---
def test_many_nodes_as_few_ones(monkeypatch):
    """An asymmetric W of 1,600 nodes: the iteration and the dense norm agree; forms of W too."""
    W = asymmetric(1600, seed=5)
    assert W.n > mx.metrics._DENSE_LIMIT
    iterated = mx.consensus_factor(W)
    assert iterated == mx.consensus_factor(W)  # the same start, the same digits
    assert mx.consensus_factor(W.to_dense()) == pytest.approx(iterated, abs=1e-10)
    D = W.to_dense() - 1 / W.n
    assert iterated == pytest.approx(1 - np.linalg.eigvalsh(D @ D.T)[-1], abs=1e-10)
    monkeypatch.setattr(mx.metrics, "_DENSE_LIMIT", 0)  # few nodes through the iteration
    for small in (asymmetric(30, 1), mx.metropolis_hastings(g.star(12)), mx.lazy(mx.uniform(g.ring(9)))):
        dense = np.linalg.norm(small.to_dense() - 1 / small.n, 2)
        assert mx.spectral_gap(small) == pytest.approx(1 - dense, abs=1e-10)


# --- eigenvalues ---
def test_eigenvalues_closed_forms():
    n = 7
    expected = sorted((1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3, key=abs, reverse=True)
    found = mx.eigenvalues(mx.uniform(g.ring(n)))
    assert found.dtype == np.float64
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-12)
    np.testing.assert_allclose(np.sort(found), np.sort(expected), atol=1e-12)
    np.testing.assert_allclose(mx.eigenvalues(mx.uniform(g.complete(4))), [1, 0, 0, 0], atol=1e-12)
    one_way = mx.uniform(Graph(5, [(i, (i + 1) % 5) for i in range(5)], directed=True))
    roots = (1 + np.exp(2j * np.pi * np.arange(5) / 5)) / 2
    found = mx.eigenvalues(one_way)
    assert np.iscomplexobj(found)
    np.testing.assert_allclose(np.sort_complex(found.round(12)), np.sort_complex(roots.round(12)), atol=1e-11)


# --- input that is refused ---
def test_a_row_with_nan_is_named_whatever_its_place():
    G = normal_rows(6, 5)
    G[4, 2] = np.nan
    rule = r"G\[4, 2\] = nan; rows are finite: look for NaN in the gradient or the update of node 4"
    W = mx.metropolis_hastings(g.ring(6))
    for rows in (G, torch.from_numpy(G).float()):
        for metric in (mx.heterogeneity, mx.consensus_distance, mx.gram_matrix):
            refused(MixingError, rule, metric, rows)
        refused(MixingError, rule, mx.gradient_mixing_error, rows, W)
        refused(MixingError, rule, mx.relative_heterogeneity, rows, W)
    refused(MixingError, "squares of the rows are too large", mx.gram_matrix, np.diag([1e200, 1, 1, 1]))


def test_rows_that_are_no_numbers_are_refused():
    nothing = np.full((4, 3), None)
    for metric in (mx.heterogeneity, mx.consensus_distance, mx.gram_matrix):
        refused(MixingError, "G is an array of object; pass an array or a tensor of real numbers", metric, nothing)
        refused(MixingError, "G is None; pass an array", metric, None)
        refused(MixingError, "G is an array of complex", metric, np.ones((4, 3)) * 1j)
        refused(MixingError, "G is an array of complex", metric, torch.ones(4, 3) * 1j)
        refused(
            MixingError, r"one row per node, an array of shape \(n, d\); got shape \(0, 3\)", metric, np.ones((0, 3))
        )
    assert mx.heterogeneity([[1.0], [3.0]]) == 1.0  # a list of rows is one


def test_wrong_numbers_of_rows_and_weights_that_are_none_are_refused():
    W = mx.metropolis_hastings(g.ring(5))
    for form in (W, W.to_dense()):
        rule = "4 rows for a mixing matrix of 5 nodes; pass one row per node"
        refused(MixingError, rule, mx.gradient_mixing_error, np.ones((4, 3)), form)
    bad = W.to_dense()
    bad[3, 1] = np.nan
    for metric in (mx.spectral_gap, mx.consensus_factor, mx.eigenvalues):
        refused(MixingError, r"W\[3, 1\] = nan; weights are finite", metric, bad)
        refused(MixingError, r"a mixing matrix is square, got an array of shape \(5, 4\)", metric, np.ones((5, 4)))
        refused(MixingError, "W is None; pass an array", metric, None)
        refused(MixingError, "W is an object of type Graph; pass an array", metric, g.ring(5))


def test_the_error_of_a_gram_matrix_with_nan_is_not_0():
    Gamma = np.eye(4)
    Gamma[1, 2] = np.nan
    assert np.isnan(mx.metrics.error_after_mixing(Gamma, mx.metropolis_hastings(g.ring(4))))
