"""Proposition 4 (local X instead of X̄) and Proposition 5 (‖W‖₂ ≤ 1)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixwise.graphs import random_connected, ring, star
from mixwise.mixing import MixingMatrix, gradient_mixing_error, gram_matrix, minimize_gme
from mixwise.tasks import random_quadratics
from theory.instances import ROUNDING, Bowls, mixing_matrices, permutation_mixture, seeds, theorem


# --- Proposition 4 ---
@theorem
@given(W=mixing_matrices(), spread=st.floats(-3, 1), seed=seeds)
def test_proposition_4_error_at_the_mean_is_bounded_by_the_error_at_the_local_points(W, spread, seed):
    """GME(X̄) ≤ 2 GME(X) + 2 L² ‖X − X̄‖²_F; corrected: the last line of the proof has L² in place of 2L²."""
    task = random_quadratics(W.n, dim=3, noise=0.0, seed=seed)
    X = 10**spread * torch.randn(W.n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    local = gradient_mixing_error(task.losses_and_gradients(X, range(W.n), 0)[1], W)
    at_mean = gradient_mixing_error(task.full_gradients(X.mean(0)), W)
    consensus = float((X - X.mean(0)).square().sum())
    bound = 2 * local + 2 * task.smoothness**2 * consensus
    assert at_mean <= bound + ROUNDING * bound


@pytest.mark.parametrize("seed", range(5))
def test_proposition_4_is_attained_and_fails_with_L_squared_alone(seed):
    """f_i = ½‖x‖² + ⟨c_i, x⟩ with Σ c_i = 0 and no mixing.

    At x_i = −c_i/2 both sides of the bound equal ‖C‖²; at x_i = −2c_i/3 the sum with L² instead of 2L² is 2/3 ‖C‖².
    """
    random = torch.Generator().manual_seed(seed)
    C = torch.randn(6, 3, generator=random, dtype=torch.float64)
    C = C - C.mean(0)
    task, W = Bowls(torch.ones(6, 1, dtype=torch.float64), C), MixingMatrix.from_dense(np.eye(6), ring(6))
    at_mean, size = gradient_mixing_error(task.full(torch.zeros(3).double()), W), float(C.square().sum())
    assert at_mean == pytest.approx(size, rel=1e-12)
    bounds = {
        share: (2 * gradient_mixing_error(task.full(-share * C), W), float((share * C).square().sum()))
        for share in (1 / 2, 2 / 3)
    }
    local, consensus = bounds[1 / 2]
    assert local + 2 * consensus == pytest.approx(at_mean, rel=1e-12)
    local, consensus = bounds[2 / 3]
    assert local + consensus == pytest.approx(2 / 3 * at_mean, rel=1e-12)


# --- Proposition 5 ---
@theorem
@given(W=mixing_matrices(1, 8))
def test_proposition_5_spectral_norm_of_a_doubly_stochastic_matrix_is_one(W):
    """‖W‖₂ ≤ 1, with equality since W𝟏 = 𝟏; and ‖W − J‖₂ ≤ 1, which Example 3 takes from here."""
    dense = W.to_dense()
    assert np.linalg.norm(dense, 2) == pytest.approx(1, abs=ROUNDING)
    assert np.linalg.norm(dense - 1 / W.n, 2) <= 1 + ROUNDING


@pytest.mark.parametrize("n", [5, 12, 32])
def test_proposition_5_covers_asymmetric_matrices(n):
    """Mixtures of permutations and GME weights really are asymmetric."""
    G = np.random.default_rng(n).standard_normal((n, n))
    for W in (permutation_mixture(n, seed=n, terms=5), minimize_gme(gram_matrix(G), random_connected(n, seed=n)).W):
        assert np.abs(W.to_dense() - W.to_dense().T).max() > 0.01
        assert np.linalg.norm(W.to_dense(), 2) <= 1 + ROUNDING


def test_proposition_5_needs_both_sums():
    """Rows that sum to 1 are not enough: if all nodes of a star send to the middle, ‖W‖₂ = √n."""
    W = np.zeros((9, 9))
    W[:, 0] = 1
    sender = MixingMatrix.from_dense(W, star(9), kind="sender")
    assert np.linalg.norm(sender.to_dense(), 2) == pytest.approx(3)
