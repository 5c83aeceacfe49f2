"""The consensus recursion (Lemma GME_consensus), non-convex case: e = ‖∇f(x̄)‖², also with growth P′."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixwise.graphs import complete
from mixwise.mixing import MixingMatrix, consensus_distance, consensus_factor, relative_heterogeneity
from theory.instances import PLACES, ROUNDING, Bowls, Valleys, mixing_distributions, slow_wave
from theory.steps import expected_after, expected_consensus, mixing_constant, one_step, spread_points, step_bound


def growth_constants(task: Valleys, W: MixingMatrix) -> tuple[float, float]:
    """ζ′², P′ with (1/n) ‖∂f(X̄)W − mean‖² ≤ ζ′² + P′ ‖∇f(x̄)‖² at every x̄.

    The left side is (1/n) ‖Wᵀ(α ∇fᵀ + C)‖² ≤ (2/n) ‖WᵀC‖² + (2/n) ‖Wᵀα‖² ‖∇f‖², without the 2 if one term is 0.
    """
    zeta_rel_sq, growth = relative_heterogeneity(task.c, W), relative_heterogeneity(task.alpha, W)
    factor = 2 if zeta_rel_sq > 0 and growth > 0 else 1
    return factor * zeta_rel_sq, factor * growth


def both_sides(task: Valleys, matrices: list[MixingMatrix], chances, X: torch.Tensor, eta: float):
    """E Ξ⁺ over all ξ and W, exactly, and the bound."""
    p = consensus_factor(matrices, chances)
    zeta_rel_sq, growth = np.asarray(chances) @ [growth_constants(task, W) for W in matrices]
    D = mixing_constant(p) * growth
    A = mixing_constant(p) * zeta_rel_sq + 3 * (1 - p) * task.variance
    e = float(task.gradient(X.mean(0)).square().sum())
    left = expected_after(task, matrices, chances, X, eta)
    return left, (1 - p / 2) * consensus_distance(X) + eta**2 * (D * e + A)


@settings(max_examples=40)
@given(
    distribution=mixing_distributions(2, 4),
    kind=st.sampled_from([(0.0, 1.0), (0.8, 0.0), (0.8, 1.0)]),
    share=st.sampled_from([1.0, 0.1]),
    **PLACES,
)
def test_consensus_recursion_nonconvex_with_growth(distribution, kind, distance, spread, share, seed):
    """Ξ_t ≤ (1 − p/2) Ξ_{t−1} + η² (D e + A) for random W, with P′ = 0, with ζ′ = 0, and with both.

    D = (8−7p)/p · P′,  A = (8−7p)/p · ζ′² + 3 (1 − p) σ², as in the lemma.
    Corrected: the growth assumption is meant with P′‖∇f(x̄)‖², not P′‖∂f(X̄)‖² (test below); the proof's last lines
    lack a factor n before ζ′² and P′ and have a stray 1 − p before P′ (tests below).
    """
    matrices, chances = distribution
    p = consensus_factor(matrices, chances)
    assume(p > 0.01)
    n, (growth, constant) = matrices[0].n, kind
    task = Valleys.random(n, 2, seed, growth, constant)
    eta = share * step_bound(p, task.L)
    mean = 10**distance * torch.randn(2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    X = spread_points(mean, n, 10**spread * eta / p, seed)
    left, right = both_sides(task, matrices, chances, X, eta)
    assert left <= right + ROUNDING * right


@pytest.mark.parametrize("n", [6, 8, 12, 24])
def test_consensus_recursion_constant_is_tight_up_to_a_factor_of_four(n):
    """Rows and gradients along the slowest wave of a ring, small steps: a quarter of A = (8−7p)/p · ζ′² is too little.

    With X̃ = −s v and ∂f = v, Ξ⁺ − (1 − p/2) Ξ is largest at s = 2η(1−p)/p, where it is (2−p)/p · η² ζ′².
    """
    W, wave, lam = slow_wave(n)
    p = consensus_factor(W)
    assert p == pytest.approx(1 - lam**2, abs=1e-12)
    task = Bowls(torch.ones_like(wave), wave)
    eta = 1e-5 * step_bound(p, task.L)
    X = -2 * eta * (1 - p) / p * wave
    increase = consensus_distance(one_step(X, task.full, W, eta)) - (1 - p / 2) * consensus_distance(X)
    needed = increase / (eta**2 * relative_heterogeneity(wave, W))
    assert needed == pytest.approx((2 - p) / p, rel=1e-3)  # the curvature enters with ηL/p < 1e-4
    assert mixing_constant(p) / 4 < needed <= mixing_constant(p)


def test_consensus_recursion_needs_a_small_step():
    """With ηL = 3 the local steps overshoot by a factor −2, and the recursion is false."""
    W, wave, _ = slow_wave(12)
    task = Bowls(torch.ones_like(wave), torch.zeros_like(wave))
    left = consensus_distance(one_step(wave, task.full, W, 3.0))
    assert left > (1 - consensus_factor(W) / 2) * consensus_distance(wave)
    assert step_bound(consensus_factor(W), task.L) < 3


@pytest.mark.parametrize("p", np.linspace(0.001, 1, 50))
def test_consensus_recursion_step_bound_is_of_order_p(p):
    """η² ≥ p²/(32 L²), better than the printed p²/(80 L²); so η = O(p/L), where the text says O(p²/L²) for η."""
    assert step_bound(p, L=2.0) >= p / np.sqrt(32) / 2
    assert step_bound(p, L=2.0) <= p / 2


def lazy_averaging(n: int, share: float) -> MixingMatrix:
    """(1 − share) I + share J: 1 − p = (1 − share)²."""
    return MixingMatrix.from_dense((1 - share) * np.eye(n) + share / n, complete(n))


def test_consensus_recursion_without_the_factor_n_fails():
    """As the proof prints it, nΞ_t ≤ … + η² (8−7p)/p · ζ′², but from consensus nΞ_t = η² n ζ′²."""
    W, n = lazy_averaging(10, 0.7), 10
    task = Valleys.random(n, 2, seed=0, growth=0.0)
    p = consensus_factor(W)
    eta = step_bound(p, task.L)
    after = one_step(torch.ones(n, 2).double(), task.full, W, eta)
    arrived = mixing_constant(p) * relative_heterogeneity(task.c, W)
    assert eta**2 * arrived < n * consensus_distance(after) <= n * eta**2 * arrived


def test_consensus_recursion_with_a_factor_one_minus_p_before_the_growth_fails():
    """The proof's last line has (8−7p)/p · (1−p) P′: too small when p is near 1. The lemma's D is right."""
    W, n = lazy_averaging(10, 0.7), 10
    task = Valleys.random(n, 2, seed=0, constant=0.0)
    p, X = consensus_factor(W), torch.ones(n, 2).double()
    after = one_step(X, task.full, W, eta=step_bound(p, task.L))
    arrived = mixing_constant(p) * growth_constants(task, W)[1] * float(task.gradient(X[0]).square().sum())
    scaled = consensus_distance(after) / step_bound(p, task.L) ** 2
    assert (1 - p) * arrived < scaled <= arrived


def test_consensus_recursion_with_the_printed_growth_assumption_fails():
    """Gradients ∇f + c_i satisfy it with ζ′ = 0, but then, says the lemma, nothing moves apart where ∇f = 0.

    Printed: (1/n)‖∂f(X̄)W − mean‖² ≤ ζ′² + P′‖∂f(X̄)‖²_F.
    """
    W, n = lazy_averaging(6, 0.3), 6
    task = Valleys.random(n, 2, seed=0, growth=0.0)
    P = relative_heterogeneity(task.c, W) / float(task.c.square().sum())
    for x in torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        G = task.full(x)
        assert relative_heterogeneity(G, W) <= P * float(G.square().sum()) * (1 + ROUNDING)
    stationary = torch.zeros(n, 2).double()
    assert float(task.gradient(stationary).square().sum()) == 0
    assert consensus_distance(one_step(stationary, task.full, W, step_bound(consensus_factor(W), task.L))) > 1e-4


def test_consensus_recursion_needs_weights_that_do_not_know_the_noise_of_their_step():
    """T₂ and its cross term with T₁ need W⁽ᵗ⁾ independent of ξ⁽ᵗ⁾: true of Algorithm 1, not of Algorithm 2.

    n = 8: W_k = (𝟏𝟏ᵀ + h_k h_kᵀ)/8 averages over each half of a Hadamard vector h_k and leaves h_k as it is. One of the
    7 is drawn, so p = 1 − 1/7. If the noise is ± h_k of the same k, nothing is mixed, and 3(1 − p)σ² is too little.
    """
    vectors = scipy.linalg.hadamard(8)[1:].astype(np.float64)
    matrices = [MixingMatrix.from_dense((1 + np.outer(h, h)) / 8, complete(8)) for h in vectors]
    p, eta, sigma_sq = consensus_factor(matrices), 0.01, 1.0
    assert p == pytest.approx(6 / 7)
    assert eta <= step_bound(p, L=1.0)
    start = torch.zeros(8, 1).double()  # all nodes at the common optimum of f_i = ½x²
    noises = [sign * torch.from_numpy(h)[:, None] for h in vectors for sign in (1, -1)]

    def after(choices: list[tuple[MixingMatrix, torch.Tensor]]) -> float:
        return expected_consensus(one_step(start, lambda X, xi=xi: X + xi, W, eta) for W, xi in choices)

    knowing = [(matrices[k // 2], xi) for k, xi in enumerate(noises)]
    independent = [(W, xi) for W in matrices for xi in noises]
    bound = 3 * (1 - p) * eta**2 * sigma_sq
    assert after(independent) <= bound < after(knowing)
