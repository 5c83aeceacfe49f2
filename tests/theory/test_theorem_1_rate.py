"""Theorem 1, non-convex case, with explicit constants; and the summation by which it follows from the recursion.

Descent: f(x̄⁺) ≤ f(x̄) − η/2 ‖∇f(x̄)‖² + η/2 L² Ξ + Lη²σ²/(2n) for η ≤ 1/L and noise independent between the nodes.
Summed over t = 0 … T and with ΣΞ ≤ (2/p) Ση²A from the consensus recursion (Ξ_0 = 0):

    (1/(T+1)) Σ E‖∇f(x̄⁽ᵗ⁾)‖² ≤ 2F_0 / (η(T+1)) + Lησ²/n + L² (2/p) η² A,   A = (8−7p)/p · ζ′² + 3(1−p)σ²
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixwise.graphs import ring
from mixwise.mixing import MixingMatrix, consensus_factor, heterogeneity, relative_heterogeneity, uniform
from mixwise.policies import Fixed
from theory.instances import Valleys, mixing_matrices, permutation_mixture, sampled, seeds
from theory.steps import iterate, mixing_constant, step_bound, trajectory


def mean_square_gradient(task: Valleys, W: MixingMatrix, eta, steps: int, x0: float = 2.0, seed: int = -1) -> float:
    """(1/(T+1)) Σ ‖∇f(x̄⁽ᵗ⁾)‖² of D-SGD from x0 on all nodes; with noise if there is a seed."""
    points = iterate(torch.full_like(task.c, x0), sampled(task, seed), W, eta, steps)
    return float(np.mean([float(task.gradient(X.mean(0)).square().sum()) for X in points]))


def rate(task: Valleys, W: MixingMatrix, eta: float, steps: int, sigma_sq: float, x0: float = 2.0) -> float:
    """The right-hand side above."""
    p, n, L = consensus_factor(W), W.n, task.L
    A = mixing_constant(p) * relative_heterogeneity(task.c, W) + 3 * (1 - p) * sigma_sq
    F_0 = task.value(torch.full_like(task.c[0], x0))
    return 2 * F_0 / (eta * (steps + 1)) + L * eta * sigma_sq / n + L**2 * (2 / p) * eta**2 * A


def test_long_runs_take_the_steps_of_the_training_loop():
    W, task = permutation_mixture(5, seed=0), Valleys.random(5, 2, seed=0)
    start = torch.full_like(task.c, 2.0)
    looped = trajectory(start, task.full, W.graph, Fixed(W), [0.01] * 20)
    for a, b in zip(iterate(start, task.full, W, 0.01, 20), looped, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@settings(max_examples=30)
@given(W=mixing_matrices(2, 7), share=st.floats(0.2, 1), size=st.floats(-1, 2), seed=seeds)
def test_theorem_1_nonconvex_rate_without_noise(W, share, size, seed):
    """No tolerance is needed: the bound is at least twice what gradient descent alone leaves."""
    p = consensus_factor(W)
    assume(p > 0.05)
    task = Valleys.random(W.n, 2, seed, growth=0.0, constant=10**size)
    eta = share * step_bound(p, task.L)
    assert mean_square_gradient(task, W, eta, steps=100) <= rate(task, W, eta, 100, sigma_sq=0.0)


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_theorem_1_nonconvex_rate_with_noise(noise):
    """In expectation over the noise, by Monte Carlo: the bound is above the mean of 30 runs by 5 standard errors."""
    task, W = Valleys.random(6, 2, seed=0, growth=0.0), uniform(ring(6))
    task.r *= noise
    eta = step_bound(consensus_factor(W), task.L)
    runs = [mean_square_gradient(task, W, eta, 100, seed=seed) for seed in range(30)]
    upper = np.mean(runs) + 5 * np.std(runs, ddof=1) / math.sqrt(len(runs))
    assert upper <= rate(task, W, eta, 100, task.variance)


def steps_for(epsilon: float, F_0: float, p: float, L: float, zeta_rel_sq: float) -> tuple[float, int]:
    """η, T for error ε without noise: O(ζ′/(p ε^{3/2}) + 1/(p ε)) · L F_0 steps, as in the theorem, whatever ζ is."""
    eta = step_bound(p, L)
    if zeta_rel_sq > 0:
        eta = min(eta, math.sqrt(epsilon * p / (4 * L**2 * mixing_constant(p) * zeta_rel_sq)))
    T = math.ceil(4 * F_0 / (eta * epsilon))
    # 1/η ≤ √32 L/p + √32 L ζ′/(p √ε), since (8 − 7p)/p ≤ 8/p
    allowed = 4 * math.sqrt(32) * (1 / (p * epsilon) + math.sqrt(zeta_rel_sq) / (p * epsilon**1.5)) * L * F_0
    assert allowed + 1 >= T
    return eta, T


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
@pytest.mark.parametrize("epsilon", [1.0, 0.3])
def test_theorem_1_number_of_iterations(seed, epsilon):
    W = permutation_mixture(6, seed)
    task = Valleys.random(6, 2, seed, growth=0.0, constant=2.0)
    F_0 = task.value(torch.full((2,), 2.0))
    eta, T = steps_for(epsilon, F_0, consensus_factor(W), task.L, relative_heterogeneity(task.c, W))
    assert mean_square_gradient(task, W, eta, T) <= epsilon


def test_theorem_1_number_of_iterations_follows_relative_heterogeneity_alone():
    """Same ring, weights, p and ζ: the steps that suffice for ζ′ = 0 do suffice, also at 10 ζ, if data have period 3,
    and do not if the same data lie sorted around the ring, where ζ′ is nearly ζ."""
    n, epsilon, W = 12, 0.05, uniform(ring(12))
    c, nodes = torch.tensor([20.0, -10.0, -10.0]).double(), torch.arange(n)
    task = Valleys(torch.zeros(n, 1).double(), torch.stack([c[nodes % 3], 10 * c[nodes % 3], c[nodes // 4]], dim=1))
    spread, _, ordered = (task.c[:, [k]] for k in range(3))  # the coordinates of f are separate: three runs in one
    assert heterogeneity(spread) == pytest.approx(heterogeneity(ordered))
    assert relative_heterogeneity(spread, W) < 1e-25 * heterogeneity(spread)
    assert relative_heterogeneity(ordered, W) > 0.5 * heterogeneity(ordered)
    eta, T = steps_for(epsilon, task.value(torch.tensor([2.0])), consensus_factor(W), task.L, 0.0)
    points = iterate(torch.full_like(task.c, 2.0), task.full, W, eta, T)
    errors = torch.stack([task.gradient(X.mean(0)).square() for X in points]).mean(0).tolist()
    assert errors[0] <= epsilon
    assert errors[1] == pytest.approx(errors[0], rel=1e-9)  # ζ does not enter at all
    assert errors[2] > 5 * epsilon


# --- from the recursion to the rate ---
def weighted_sums(w, e, eta, p: float, D: float, A: float) -> tuple[float, float, float]:
    """Σ w_t Ξ_t, Σ w_t e_t and Σ w_t η_t² when the recursion holds with equality and Ξ_0 = 0."""
    Xi = np.zeros(len(w))
    for t in range(1, len(w)):
        Xi[t] = (1 - p / 2) * Xi[t - 1] + eta[t - 1] ** 2 * (D * e[t - 1] + A)
    return float(w @ Xi), float(w @ e), float(w @ eta**2)


@given(p=st.floats(0.01, 1), D=st.floats(0.01, 100), b=st.floats(0.1, 10), growing=st.booleans(), seed=seeds)
def test_theorem_1_summation_of_the_recursion(p, D, b, growing, seed):
    """B Σ w_t Ξ_t ≤ (b/2) Σ w_t e_t + A B (2/p) Σ w_t η_t² if w does not increase and η² ≤ p b / (4 B D), with B = 1.

    Corrected: printed is η ≤ √(p b D / (2B)), with D on the wrong side, and "w_t ≤ w_j for j ≥ t", the wrong way
    around. The strongly convex case has weights that do increase: then w_{t+1} ≤ (1 + p/4) w_t is needed, and 4/p
    takes the place of 2/p (and 8 that of 4 in the bound on η²).
    """
    random = np.random.default_rng(seed)
    T, A, factor = 60, 1.0, 4 if growing else 2
    w = np.cumprod(random.uniform(1, 1 + p / 4, T)) if growing else np.sort(random.uniform(0.1, 1, T))[::-1]
    e = random.exponential(size=T) * (random.random(T) < 0.3)
    eta = math.sqrt(p * b / (2 * factor * D)) * random.uniform(0, 1, T)
    left, errors, steps = weighted_sums(w, e, eta, p, D, A)
    assert left <= (b / 2 * errors + A * factor / p * steps) * (1 + 1e-12)  # rounding of a sum of 60 terms


def test_theorem_1_summation_fails_with_the_printed_conditions():
    T, p, b = 400, 0.1, 1.0
    e = np.zeros(T)
    e[0] = 1.0
    # the printed step bound √(pbD/2) allows steps that are D times too large
    D, w = 10.0, np.ones(T)
    left, errors, steps = weighted_sums(w, e, np.full(T, math.sqrt(p * b * D / 2)), p, D, A=0.0)
    assert left > b / 2 * errors + 0 * steps
    # weights that increase, as in the strongly convex case, with the constants for those that do not
    w = (1 + p / 4) ** np.arange(T)
    left, errors, steps = weighted_sums(w, e, np.full(T, math.sqrt(p * b / (4 * D))), p, D, A=0.0)
    assert left > b / 2 * errors
