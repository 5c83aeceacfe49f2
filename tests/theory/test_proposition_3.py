"""Proposition 3: with k = 100 log(m/δ)/ε², sketches keep inner products within ε max‖u‖², with a chance of 1 − δ."""

import math

import numpy as np
import pytest

from mixwise.sketch import CountSketch, GaussianSketch, Sketch


def rows(m: int, d: int, seed: int) -> np.ndarray:
    """Rows of length 1, the hardest case since ε is measured in the longest; the first two are nearly parallel."""
    random = np.random.default_rng(seed)
    U = random.standard_normal((m, d))
    U[1] = U[0] + 0.01 * random.standard_normal(d)
    return U / np.linalg.norm(U, axis=1, keepdims=True)


def largest_error(U: np.ndarray, sketch: Sketch) -> float:
    """max_ij |⟨Au_i, Au_j⟩/k − ⟨u_i, u_j⟩| / max‖u‖²; the sketch has the factor 1/√k built in."""
    S = sketch(U)
    return np.abs(S @ S.T - U @ U.T).max() / np.square(U).sum(1).max()


@pytest.mark.parametrize(("m", "epsilon", "delta"), [(2, 0.5, 0.5), (8, 0.5, 0.1), (16, 1.0, 0.01), (8, 0.25, 0.5)])
@pytest.mark.parametrize("kind", [GaussianSketch, CountSketch])
def test_proposition_3_all_inner_products_are_kept_except_with_probability_delta(m, epsilon, delta, kind):
    """Corrected: k = Ω(log(m/δ)/ε²) with the appendix' constant 100 and ε ≤ 1, where the main text prints k = ω(…).

    The proof's own constants are generous (its tail bound at this k is below (δ/m)¹⁰), so no failure is expected at
    all; δ of the draws is what the statement allows.
    """
    k, draws = math.ceil(100 * math.log(m / delta) / epsilon**2), 60
    U = rows(m, 30, seed=m)
    failures = sum(largest_error(U, kind(k, seed=seed)) > epsilon for seed in range(draws))
    assert failures <= delta * draws


@pytest.mark.parametrize(("m", "epsilon", "delta"), [(8, 0.5, 0.1), (8, 0.25, 0.5)])
def test_proposition_3_needs_k_of_this_order(m, epsilon, delta):
    """With the constant 100 replaced by 1, more than a share δ of the draws fails: the test above can fail too."""
    k, draws = math.ceil(math.log(m / delta) / epsilon**2), 100
    U = rows(m, 30, seed=m)
    failures = sum(largest_error(U, GaussianSketch(k, seed=seed)) > epsilon for seed in range(draws))
    # 100 draws at a rate of exactly δ would pass this with probability below 3e-7 (5 standard deviations)
    assert failures > delta * draws + 5 * math.sqrt(draws * delta * (1 - delta))


def test_proposition_3_error_falls_as_one_over_the_root_of_k_and_not_with_d():
    """E⟨Su, Sv⟩ = ⟨u, v⟩ (printed without the factor 1/k) with variance (‖u‖²‖v‖² + ⟨u, v⟩²)/k, whatever d is."""
    draws = 400
    for d in (5, 200):
        u, v = rows(2, d, seed=0)[:1], np.random.default_rng(1).standard_normal((1, d))
        for k in (4, 64):
            products = []
            for seed in range(draws):
                S = GaussianSketch(k, seed=seed)(np.concatenate([u, v]))
                products.append(S[0] @ S[1])
            variance = ((u @ u.T) * (v @ v.T) + (u @ v.T) ** 2).item() / k
            # the mean of 400 draws is within 5 standard errors, their variance within 50 % (kurtosis below 9 at k = 4)
            assert abs(np.mean(products) - (u @ v.T).item()) < 5 * math.sqrt(variance / draws)
            assert 0.5 < np.var(products) / variance < 1.5
