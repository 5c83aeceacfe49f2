"""The consensus recursion of decoupled mixing, X⁺ = X W_p − η G W_g (appendix).

W_g does not contract, so the factors 1 − p go, and with them the reason why β₁ = p/(8(1 − p)) may grow: in
    T₁ ≤ (1 + β₁)(1 + β₂) (1 − p) ‖X̃‖² + (1 + β₁)(1 + 1/β₂) η² L² ‖X̃‖² + (1 + 1/β₁) η² n ζ′²
the printed constants, 1 + 1/β₁ = (8 − 7p)/p, need a step size that goes to 0 as p goes to 1, and fail at p = 1 for
every step size. With β₁ = p/8 the constant is (8 + p)/p and the step bound stays of order p/L.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixwise.algorithms import DecoupledDSGD
from mixwise.graphs import complete
from mixwise.mixing import MixingMatrix, consensus_distance, consensus_factor, relative_heterogeneity, uniform
from mixwise.policies import Decoupled, Fixed
from theory.instances import PLACES, ROUNDING, Bowls, Valleys, mixing_matrices, permutation_mixture
from theory.steps import expected_consensus, mixing_constant, spread_points, trajectory


def decoupled_step(X: torch.Tensor, gradients, W_p: MixingMatrix, W_g: MixingMatrix, eta: float) -> torch.Tensor:
    """X⁺ of one step of the real algorithm."""
    policy = Decoupled(params=Fixed(W_p), updates=Fixed(W_g))
    return trajectory(X, gradients, complete(W_p.n), policy, [eta], DecoupledDSGD())[-1]


def printed(p: float, L: float) -> tuple[float, float]:
    """The printed constant (8 − 7p)/p, and the step bound that its proof needs here."""
    beta_1, beta_2 = p / (8 * (1 - p)), p / (8 - 7 * p)
    return mixing_constant(p), math.sqrt(p / 4 / ((1 + beta_1) * (1 + 1 / beta_2) + 6)) / L


def corrected(p: float, L: float) -> tuple[float, float]:
    """The constant (8 + p)/p for all p in (0, 1], and its step bound, at least p / (√34 L)."""
    return (8 + p) / p, math.sqrt(p / 4 / ((1 + p / 8) * (8 - 6 * p) / p + 6)) / L


VARIANTS = st.sampled_from([printed, corrected])


@settings(max_examples=40)
@given(W_p=mixing_matrices(2, 4), variant=VARIANTS, growth=st.booleans(), **PLACES)
def test_consensus_recursion_of_decoupled_mixing_nonconvex(W_p, variant, growth, distance, spread, seed):
    """D = k P′, A = k ζ′² + 3σ² with ζ′, P′ of W_g and p of W_p; k as printed for small steps, or as corrected."""
    p, n, W_g = consensus_factor(W_p), W_p.n, permutation_mixture(W_p.n, seed)
    assume(0.01 < p < 0.99)
    task = Valleys.random(n, 2, seed, growth=0.8, constant=0.0) if growth else Valleys.random(n, 2, seed, growth=0.0)
    k, eta = variant(p, task.L)
    mean = 10**distance * torch.randn(2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    X = spread_points(mean, n, 10**spread * eta / p, seed)
    left = expected_consensus(decoupled_step(X, gradients, W_p, W_g, eta) for gradients in task.outcomes())
    D = k * relative_heterogeneity(task.alpha, W_g)
    A = k * relative_heterogeneity(task.c, W_g) + 3 * task.variance
    e = float(task.gradient(mean).square().sum())
    right = (1 - p / 2) * consensus_distance(X) + eta**2 * (D * e + A)
    assert left <= right + ROUNDING * right


@settings(max_examples=40)
@given(W_p=mixing_matrices(2, 4), variant=VARIANTS, **PLACES)
def test_consensus_recursion_of_decoupled_mixing_convex(W_p, variant, distance, spread, seed):
    """D = 36L + 4Lk, A = 2k ζ′⋆² + 9σ⋆²."""
    p, n, W_g = consensus_factor(W_p), W_p.n, permutation_mixture(W_p.n, seed)
    assume(0.01 < p < 0.99)
    task = Bowls.random(n, 2, seed)
    k, eta = variant(p, task.L)
    X = spread_points(task.optimum + 10**distance, n, 10**spread * eta / p, seed)
    left = expected_consensus(decoupled_step(X, gradients, W_p, W_g, eta) for gradients in task.outcomes())
    D = 36 * task.L + 4 * task.L * k
    A = 2 * k * relative_heterogeneity(task.full(task.optimum), W_g) + 9 * task.variance(task.optimum)
    right = (1 - p / 2) * consensus_distance(X) + eta**2 * (D * task.excess(X.mean(0)) + A)
    assert left <= right + ROUNDING * right


@pytest.mark.parametrize("eta", [0.1, 0.01])
def test_consensus_recursion_of_decoupled_mixing_fails_as_printed_when_parameters_are_fully_averaged(eta):
    """W_p = J (p = 1), W_g = I, f_i = ½‖x‖² + ⟨c_i, x⟩: with X̃ = s C, Ξ⁺ = η²(1 + s)² ζ′² and the printed bound is
    ½ s² ζ′² + η² ζ′², too small for 0 < s < 4η². The corrected constant 9 instead of 1 covers it for every s."""
    n = 6
    W_p, W_g = uniform(complete(n)), MixingMatrix.from_dense(np.eye(n), complete(n))
    p = consensus_factor(W_p)
    assert p == pytest.approx(1)
    c = Valleys.random(n, 3, seed=0).c
    task = Bowls(torch.ones(n, 1).double(), c)
    k, bound = corrected(1.0, task.L)
    assert (mixing_constant(1.0), k) == (1, 9)
    assert eta <= bound
    zeta_rel_sq = relative_heterogeneity(c, W_g)
    for s in (eta**2, 2 * eta**2):
        X = s * c
        left = consensus_distance(decoupled_step(X, task.full, W_p, W_g, eta))
        half = consensus_distance(X) / 2
        assert half + eta**2 * zeta_rel_sq * (1 + 1e-9) < left
        assert left <= half + k * eta**2 * zeta_rel_sq


def test_consensus_recursion_of_decoupled_mixing_loses_the_factor_one_minus_p():
    """With D-SGD's 3(1 − p)σ² in place of 3σ² the bound fails: W_p near J, W_g = I, noise and nothing else."""
    n = 4
    W_p = MixingMatrix.from_dense(0.1 * np.eye(n) + 0.9 / n, complete(n))
    W_g = MixingMatrix.from_dense(np.eye(n), complete(n))
    zero = torch.zeros(n, 1).double()
    task = Bowls(zero + 1, zero, r=zero + 1)  # at consensus in x* = 0: Ξ = e = ζ⋆ = 0
    left = expected_consensus(decoupled_step(zero, gradients, W_p, W_g, 0.1) for gradients in task.outcomes())
    sigma_sq = task.variance(task.optimum)
    assert 3 * (1 - consensus_factor(W_p)) * 0.1**2 * sigma_sq < left <= 3 * 0.1**2 * sigma_sq


def test_consensus_recursion_of_decoupled_mixing_keeps_a_step_of_order_p_only_as_corrected():
    """At p = 0.9999 the printed constants allow a step 17 times smaller than the corrected ones."""
    assert 17 * printed(0.9999, 1.0)[1] < corrected(0.9999, 1.0)[1]
    for p in np.linspace(0.001, 1, 50):
        assert corrected(p, L=2.0)[1] >= p / math.sqrt(34) / 2
