"""Remark 1 (spectral gap), corrected: δ = 1 − ‖W − J‖₂ instead of the printed 1 − ‖W‖₂."""

import numpy as np
import torch
from hypothesis import given

from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, consensus_distance, consensus_factor, spectral_gap, uniform
from mixwise.network import SimulatedNetwork
from theory.instances import ROUNDING, mixing_matrices, seeds, theorem, worst_direction


@theorem
@given(W=mixing_matrices(), seed=seeds)
def test_remark_1_spectral_gap_bounds_the_contraction_of_every_disagreement(W, seed):
    """‖XW − X̄‖² ≤ (1 − δ) ‖X − X̄‖², as printed, with the corrected δ."""
    X = torch.randn(W.n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = SimulatedNetwork(W.graph).mix(X, W)
    before = consensus_distance(X)
    assert consensus_distance(mixed) <= (1 - spectral_gap(W)) * before + ROUNDING * before


@theorem
@given(W=mixing_matrices())
def test_remark_1_consensus_factor_is_at_least_the_spectral_gap(W):
    """p − δ = δ (1 − δ): never negative, and 0 only for δ = 0 (no mixing in some direction) or δ = 1 (W = J)."""
    p, delta = consensus_factor(W), spectral_gap(W)
    assert p >= delta - ROUNDING
    assert abs((p - delta) - delta * (1 - delta)) <= ROUNDING


def test_remark_1_is_tight_at_no_mixing_and_at_full_averaging_only():
    nothing, everything, ring_of_eight = MixingMatrix.from_dense(np.eye(5)), uniform(complete(5)), uniform(ring(8))
    assert consensus_factor(nothing) == spectral_gap(nothing) == 0
    assert abs(consensus_factor(everything) - 1) < ROUNDING
    assert abs(spectral_gap(everything) - 1) < ROUNDING
    # λ₂ = (1 + √2)/3 by the eigenvalues of a circulant matrix
    delta = 1 - (1 + np.sqrt(2)) / 3
    assert abs(spectral_gap(ring_of_eight) - delta) < ROUNDING
    assert abs(consensus_factor(ring_of_eight) - delta * (2 - delta)) < ROUNDING
    assert consensus_factor(ring_of_eight) > 1.8 * spectral_gap(ring_of_eight)


@theorem
@given(W=mixing_matrices())
def test_remark_1_as_printed_would_be_zero_for_every_matrix(W):
    """‖W‖₂ = 1 since W𝟏 = 𝟏, so 1 − ‖W‖₂ says nothing."""
    assert abs(1 - np.linalg.norm(W.to_dense(), 2)) <= ROUNDING


@theorem
@given(W=mixing_matrices())
def test_assumption_4_consensus_factor_is_the_largest_that_holds(W):
    """In the direction that W mixes the least, the contraction is exactly 1 − p: no larger p would do."""
    v = worst_direction(W)[:, None]
    # absolute, because at W = J both sides are 0
    assert abs(consensus_distance(W.to_dense().T @ v) - (1 - consensus_factor(W)) * consensus_distance(v)) <= ROUNDING
