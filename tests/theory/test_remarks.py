"""Remarks 1 and 2: the spectral gap and the consensus factor, and what mixing leaves of the heterogeneity."""

import numpy as np
import torch
from hypothesis import given

import mixwise.mixing as mx
from mixwise.graphs import complete, ring
from mixwise.network import SimulatedNetwork
from theory.instances import ROUNDING, mixing_distributions, mixing_matrices, seeds


# --- Remark 1 (spectral gap), corrected: δ = 1 − ‖W − J‖₂ instead of the printed 1 − ‖W‖₂ ---
@given(W=mixing_matrices(), seed=seeds)
def test_remark_1_spectral_gap_bounds_the_contraction_of_every_disagreement(W, seed):
    """‖XW − X̄‖² ≤ (1 − δ) ‖X − X̄‖², as printed, with the corrected δ."""
    X = torch.randn(W.n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = SimulatedNetwork(W.graph).mix(X, W)
    before = mx.consensus_distance(X)
    assert mx.consensus_distance(mixed) <= (1 - mx.spectral_gap(W)) * before + ROUNDING * before


@given(W=mixing_matrices())
def test_remark_1_consensus_factor_is_at_least_the_spectral_gap(W):
    """p − δ = δ (1 − δ): never negative, and 0 only for δ = 0 (no mixing in some direction) or δ = 1 (W = J)."""
    p, delta = mx.consensus_factor(W), mx.spectral_gap(W)
    assert p >= delta - ROUNDING
    assert abs((p - delta) - delta * (1 - delta)) <= ROUNDING


def test_remark_1_is_tight_at_no_mixing_and_at_full_averaging_only():
    nothing, everything = mx.MixingMatrix.from_dense(np.eye(5)), mx.uniform(complete(5))
    ring_of_eight = mx.uniform(ring(8))
    assert mx.consensus_factor(nothing) == mx.spectral_gap(nothing) == 0
    assert abs(mx.consensus_factor(everything) - 1) < ROUNDING
    assert abs(mx.spectral_gap(everything) - 1) < ROUNDING
    # λ₂ = (1 + √2)/3 by the eigenvalues of a circulant matrix
    delta = 1 - (1 + np.sqrt(2)) / 3
    assert abs(mx.spectral_gap(ring_of_eight) - delta) < ROUNDING
    assert abs(mx.consensus_factor(ring_of_eight) - delta * (2 - delta)) < ROUNDING
    assert mx.consensus_factor(ring_of_eight) > 1.8 * mx.spectral_gap(ring_of_eight)


# --- Assumption 4 and Remark 2: mixing leaves at most the share 1 − p of the heterogeneity, and sometimes that much ---
@given(distribution=mixing_distributions(), seed=seeds)
def test_remark_2_relative_heterogeneity_is_at_most_one_minus_p_times_heterogeneity(distribution, seed):
    """E ζ′²(W) ≤ (1 − p) ζ² with p = 1 − λ_max(E[W Wᵀ] − J), which is at least the mean of the matrices' own p."""
    matrices, chances = distribution
    G = np.random.default_rng(seed).standard_normal((matrices[0].n, 3))
    zeta_sq, p = mx.heterogeneity(G), mx.consensus_factor(matrices, chances)
    zeta_rel_sq = sum(q * mx.relative_heterogeneity(G, W) for q, W in zip(chances, matrices, strict=True))
    assert zeta_rel_sq <= (1 - p) * zeta_sq + ROUNDING * zeta_sq
    assert p >= sum(q * mx.consensus_factor(W) for q, W in zip(chances, matrices, strict=True)) - ROUNDING


@given(distribution=mixing_distributions())
def test_assumption_4_and_remark_2_are_attained(distribution):
    """Along the top eigenvector of E[W Wᵀ] − J, which W mixes the least, rows and gradients keep the share 1 − p.

    So no larger p would do, and no smaller factor such as (1 − p)²; E[Wᵀ W] would be another p.
    """
    matrices, chances = distribution
    second_moment = sum(q * W.to_dense() @ W.to_dense().T for q, W in zip(chances, matrices, strict=True))
    v = np.linalg.eigh(second_moment - 1 / matrices[0].n)[1][:, -1:]
    kept = (1 - mx.consensus_factor(matrices, chances)) * mx.heterogeneity(v)
    for left in (mx.relative_heterogeneity, lambda v, W: mx.consensus_distance(W.to_dense().T @ v)):
        assert abs(sum(q * left(v, W) for q, W in zip(chances, matrices, strict=True)) - kept) <= ROUNDING


def test_remark_2_random_pairs_mix_though_no_single_pairing_does():
    """Two pairings on a ring of 4: each has p = 0, the random choice between them p = 1/2."""
    pairings = [mx.clique_averaging(pairs, ring(4)) for pairs in ([(0, 1), (2, 3)], [(1, 2), (0, 3)])]
    assert [round(mx.consensus_factor(W), 12) for W in pairings] == [0, 0]
    assert abs(mx.consensus_factor(pairings) - 0.5) < ROUNDING


def test_remark_2_relative_heterogeneity_can_be_far_below_the_bound():
    """Often ζ′ is much smaller, says the remark: the shortest wave on a ring of 12 has λ = −1/3, the longest 0.91."""
    W, G = mx.uniform(ring(12)), np.array([1.0, -1.0] * 6)[:, None]
    assert abs(mx.relative_heterogeneity(G, W) - mx.heterogeneity(G) / 9) < ROUNDING
    assert (1 - mx.consensus_factor(W)) * mx.heterogeneity(G) > 0.8
