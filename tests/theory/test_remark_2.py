"""Remark 2: mixing leaves at most the share 1 − p of the heterogeneity."""

import numpy as np
from hypothesis import given

from mixwise.graphs import ring
from mixwise.mixing import clique_averaging, consensus_factor, heterogeneity, relative_heterogeneity, uniform
from mixwise.tasks import random_quadratics
from theory.instances import ROUNDING, mixing_distributions, mixing_matrices, seeds, theorem, worst_direction


@theorem
@given(W=mixing_matrices(), seed=seeds)
def test_remark_2_relative_heterogeneity_is_at_most_one_minus_p_times_heterogeneity(W, seed):
    """ζ′² ≤ (1 − p) ζ² for the gradients of quadratics at a common point."""
    task = random_quadratics(W.n, dim=3, seed=seed)
    G = task.full_gradients(task.initial(range(1))[0])
    zeta_sq = heterogeneity(G)
    assert relative_heterogeneity(G, W) <= (1 - consensus_factor(W)) * zeta_sq + ROUNDING * zeta_sq


@theorem
@given(distribution=mixing_distributions(), seed=seeds)
def test_remark_2_holds_in_expectation_over_random_weights(distribution, seed):
    """E ζ′²(W) ≤ (1 − p) ζ² with p = 1 − λ_max(E[W Wᵀ] − J), which is at least the mean of the matrices' own p."""
    matrices, chances = distribution
    G = np.random.default_rng(seed).standard_normal((matrices[0].n, 3))
    zeta_sq, p = heterogeneity(G), consensus_factor(matrices, chances)
    zeta_rel_sq = sum(q * relative_heterogeneity(G, W) for q, W in zip(chances, matrices, strict=True))
    assert zeta_rel_sq <= (1 - p) * zeta_sq + ROUNDING * zeta_sq
    assert p >= sum(q * consensus_factor(W) for q, W in zip(chances, matrices, strict=True)) - ROUNDING


@theorem
@given(distribution=mixing_distributions())
def test_remark_2_is_attained_in_expectation(distribution):
    """Along the top eigenvector of E[W Wᵀ] − J, E ζ′²(W) is exactly (1 − p) ζ²; E[Wᵀ W] would be another p."""
    matrices, chances = distribution
    second_moment = sum(q * W.to_dense() @ W.to_dense().T for q, W in zip(chances, matrices, strict=True))
    G = np.linalg.eigh(second_moment - 1 / matrices[0].n)[1][:, -1:]
    left = sum(q * relative_heterogeneity(G, W) for q, W in zip(chances, matrices, strict=True))
    assert abs(left - (1 - consensus_factor(matrices, chances)) * heterogeneity(G)) <= ROUNDING


def test_remark_2_random_pairs_mix_though_no_single_pairing_does():
    """Two pairings on a ring of 4: each has p = 0, the random choice between them p = 1/2."""
    pairings = [clique_averaging(pairs, ring(4)) for pairs in ([(0, 1), (2, 3)], [(1, 2), (0, 3)])]
    assert [round(consensus_factor(W), 12) for W in pairings] == [0, 0]
    assert abs(consensus_factor(pairings) - 0.5) < ROUNDING


@theorem
@given(W=mixing_matrices())
def test_remark_2_is_attained_so_no_smaller_factor_would_do(W):
    """Gradients along the direction that W mixes the least leave exactly (1 − p) ζ²; (1 − p)² would be too little."""
    G = worst_direction(W)[:, None]
    left = relative_heterogeneity(G, W)
    p = consensus_factor(W)
    assert abs(left - (1 - p) * heterogeneity(G)) <= ROUNDING
    if 0.01 < p < 0.99:
        assert left > (1 - p) ** 2 * heterogeneity(G)


def test_remark_2_relative_heterogeneity_can_be_far_below_the_bound():
    """Often ζ′ is much smaller, says the remark: the shortest wave on a ring of 12 has λ = −1/3, the longest 0.91."""
    W, G = uniform(ring(12)), np.array([1.0, -1.0] * 6)[:, None]
    assert abs(relative_heterogeneity(G, W) - heterogeneity(G) / 9) < ROUNDING
    assert (1 - consensus_factor(W)) * heterogeneity(G) > 0.8
