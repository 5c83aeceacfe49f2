"""The consensus recursion (Lemma GME_consensus), convex case: e = f(x̄) − f*, heterogeneity and noise at x* only."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixwise.graphs import ring
from mixwise.mixing import MixingMatrix, consensus_distance, consensus_factor, relative_heterogeneity, uniform
from theory.instances import PLACES, ROUNDING, Bowls, mixing_distributions
from theory.steps import expected_after, mixing_constant, spread_points, step_bound


def both_sides(task: Bowls, matrices: list[MixingMatrix], chances, X: torch.Tensor, eta: float) -> tuple[float, float]:
    """E Ξ⁺ over all ξ and W, exactly, and the bound."""
    p, L, star = consensus_factor(matrices, chances), task.L, task.optimum
    zeta_rel_sq = sum(q * relative_heterogeneity(task.full(star), W) for q, W in zip(chances, matrices, strict=True))
    D = (1 - p) * (36 * L + 4 * L * mixing_constant(p))
    A = 2 * mixing_constant(p) * zeta_rel_sq + 9 * (1 - p) * task.variance(star)
    right = (1 - p / 2) * consensus_distance(X) + eta**2 * (D * task.excess(X.mean(0)) + A)
    return expected_after(task, matrices, chances, X, eta), right


@settings(max_examples=30)
@given(distribution=mixing_distributions(2, 4), share=st.sampled_from([1.0, 0.1]), **PLACES)
def test_consensus_recursion_convex(distribution, distance, spread, share, seed):
    """Ξ_t ≤ (1 − p/2) Ξ_{t−1} + η² (D e + A) for random W, noise that depends on x, and η up to the proof's bound.

    D = (1 − p)(36L + 4L(8−7p)/p),  A = 2 (8−7p)/p · ζ′⋆² + 9 (1 − p) σ⋆².
    Corrected: the lemma's D lacks the factor 1 − p before 4L(8−7p)/p, so it is larger than need be; the lemma writes
    ζ′, σ where the proof has ζ′⋆, σ⋆; the proof loses a factor n (4(1−p)L·e should be 4(1−p)L·n·e), a factor η²
    and L², and needs every F_i(·, ξ) to be convex, not only f_i (test below).
    """
    matrices, chances = distribution
    p = consensus_factor(matrices, chances)
    assume(p > 0.01)
    task = Bowls.random(matrices[0].n, 2, seed)
    eta = share * step_bound(p, task.L)
    X = spread_points(task.optimum + 10**distance, matrices[0].n, 10**spread * eta / p, seed)
    left, right = both_sides(task, matrices, chances, X, eta)
    assert left <= right + ROUNDING * right


def test_consensus_recursion_convex_needs_convex_samples():
    """f_i = 10⁻⁴·½x² are convex but F_i(x, ±1) = (10⁻⁴ ± 1)·½x² are not: the noise at x̄ ≠ x* is not seen by e or σ⋆."""
    W = uniform(ring(4))
    task = Bowls(torch.full((4, 1), 1e-4).double(), torch.zeros(4, 1).double(), torch.ones(4, 1).double())
    X = torch.ones(4, 1).double()
    left, right = both_sides(task, [W], [1.0], X, eta=step_bound(consensus_factor(W), task.L))
    assert left > 10 * right


def test_consensus_recursion_convex_needs_its_noise_and_its_gap():
    """At consensus, either term alone is what keeps the bound above: without it the right-hand side would be 0."""
    W, start = uniform(ring(6)), torch.ones(6, 1).double()
    h, zero = torch.tensor([[1.0], [0.2]] * 3).double(), torch.zeros(6, 1).double()
    eta = step_bound(consensus_factor(W), 1.0)
    curved = Bowls(h, zero)  # one minimum, x* = 0, for all nodes: ζ⋆ = σ⋆ = 0, and only e is left
    noisy = Bowls(zero + 1, zero - 1, r=zero + 1)  # at x* = 1 on all nodes: e = ζ⋆ = 0, and only σ⋆ is left
    for task in (curved, noisy):
        left, right = both_sides(task, [W], [1.0], start, eta)
        assert 0 < left <= right
    assert (curved.variance(curved.optimum), noisy.excess(start[0])) == (0, 0)


def test_lemma_1_gradient_differences_of_smooth_convex_functions():
    """‖∇g(x) − ∇g(y)‖² ≤ 2L (g(x) − g(y) − ⟨x − y, ∇g(y)⟩), summed over the nodes with y = x*: 2L (f(x) − f*).

    Equality for equal curvatures, so the constant 2L cannot be smaller.
    """
    for seed in range(50):
        task = Bowls.random(5, 3, seed, noisy=False)
        x = task.optimum + torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        difference = float((task.full(x) - task.full(task.optimum)).square().sum(1).mean())
        assert difference <= 2 * task.L * task.excess(x) * (1 + ROUNDING)
    equal = Bowls(torch.full((4, 1), 3.0).double(), torch.arange(4.0).double()[:, None])
    x = equal.optimum + 1
    difference = float((equal.full(x) - equal.full(equal.optimum)).square().sum(1).mean())
    assert difference == pytest.approx(2 * equal.L * equal.excess(x), rel=1e-12)
