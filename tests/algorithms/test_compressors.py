"""Compressed gossip: what the compressors promise (Koloskova et al. 2019, Alistarh et al. 2017), and what travels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixwise.policies as pol
from builders import cases, refused, simulated
from builders import random_rows as rows
from mixwise.algorithms import Choco, Quantize, QuasiGlobalMomentum, TopK
from mixwise.errors import TrainingError
from mixwise.graphs import random_connected
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.plan import Plan
from mixwise.tasks import random_quadratics

N = 6
W = metropolis_hastings(random_connected(N, seed=3))


def make(algorithm, policy=W, d=10, **options):
    return simulated(policy, algorithm, W.graph, task=random_quadratics(N, dim=d, noise=0.2), **options)


# --- top-k ---
@given(share=st.floats(0.001, 1), d=st.integers(1, 50), seed=st.integers(0, 10**6))
def test_top_k_keeps_the_largest_entries_and_leaves_at_most_1_minus_k_over_d(share, d, seed):
    x = rows(3, d, seed)
    kept = TopK(share)(x.clone(), range(3), 0).rows
    k = max(1, round(share * d))
    for row, original in zip(kept.numpy(), x.numpy(), strict=True):
        here = row != 0
        assert here.sum() == k
        np.testing.assert_array_equal(row[here], original[here])
        assert np.abs(original[here]).min() >= np.abs(original[~here]).max(initial=0)
        assert np.square(row - original).sum() <= (1 - k / d) * np.square(original).sum() + 1e-12


# --- random rounding ---
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_rounding_is_right_on_average_up_to_its_scale_and_its_error_is_smaller_than_the_row(bits):
    """E[Q(x)] = x / ω and E‖Q(x) − x‖² ≤ (1 − 1/ω) ‖x‖², ω = 1 + min(d/s², √d/s), s = 2^bits − 1."""
    d, draws = 30, 3000
    s = 2**bits - 1
    omega = 1 + min(d / s**2, math.sqrt(d) / s)
    x = rows(1, d, seed=1)
    found = torch.cat([Quantize(bits)(x.clone(), range(1), t, 2).rows for t in range(draws)])
    norm = float(x.norm())
    # an entry lies on a grid of width norm / s, so its mean over T draws is off by at most half of that over √T
    spread = norm / s / 2 / math.sqrt(draws)
    assert float((found.mean(0) * omega - x[0]).abs().max()) < 4.5 * spread
    errors = (found - x).square().sum(1)
    assert float(errors.mean()) <= (1 - 1 / omega) * norm**2 * 1.02


@given(bits=st.integers(1, 16), d=st.integers(1, 40), seed=st.integers(0, 10**6), t=st.integers(0, 99))
def test_rounded_entries_are_levels_with_the_sign_of_the_entry(bits, d, seed, t):
    """sign(x) · ℓ · ‖x‖ / (s ω), ℓ one of the two levels around s |x| / ‖x‖: what sign, norm and ℓ tell a receiver."""
    x, s = rows(2, d, seed), 2**bits - 1
    omega = 1 + min(d / s**2, math.sqrt(d) / s)
    norms = np.linalg.norm(x.numpy(), axis=1, keepdims=True)
    levels = Quantize(bits)(x.clone(), range(2), t).rows.numpy() * s * omega / norms
    exact = s * x.numpy() / norms
    np.testing.assert_allclose(levels, np.round(levels), rtol=0, atol=1e-9)
    assert (np.abs(np.abs(levels) - np.abs(exact)) < 1 + 1e-9).all()
    assert (levels * exact >= 0).all()
    assert np.abs(levels).max() <= s + 1e-9  # so that it fits into its bits


def test_the_draws_depend_on_node_mixing_and_seed_alone():
    """A process that owns some of the nodes rounds them as one that owns all."""
    x, compress = rows(5, 8), Quantize(2)
    whole = compress(x.clone(), range(5), 3, 7).rows
    assert torch.equal(compress(x[2:4].clone(), range(2, 4), 3, 7).rows, whole[2:4])
    for t, seed in ((4, 7), (3, 8)):
        assert not torch.equal(compress(x.clone(), range(5), t, seed).rows, whole)
    same = compress(x[:1].repeat(5, 1), range(5), 3, 7).rows
    assert not torch.equal(same[0], same[1])


@pytest.mark.parametrize("compress", [TopK(0.3), Quantize(3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_zeros_stay_zeros_and_rows_keep_their_dtype(compress, dtype):
    x = rows(3, 10, dtype=dtype)
    x[1] = 0
    found = compress(x.clone(), range(3), 0).rows
    assert found.dtype == dtype
    assert torch.isfinite(found).all()
    assert found.any(1).tolist() == [True, False, True]


# --- what travels ---
@cases(
    "compressor, entries, rest",
    (TopK(0.1), 1, 1 * 4),  # of 10 entries: value and position
    (TopK(0.34), 3, 3 * 4),
    (TopK(0.001), 1, 1 * 4),  # at least one
    (Quantize(4), 1, 7),  # the norm, and 10 · 5 bits, which take 7 bytes
    (Quantize(1), 1, 3),
    (Quantize(7), 1, 10),
)
def test_only_compressed_rows_travel(compressor, entries, rest):
    training = make(Choco(compressor))
    training.step()
    training.step()
    assert training.network.traffic.parameters == 2 * W.messages * (8 * entries + rest)
    assert compressor(torch.zeros(1, 10), range(1), 0).width == 4 * entries + rest  # of float32


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.numerics
@given(
    compressor=st.one_of(st.floats(0.001, 1).map(TopK), st.integers(1, 16).map(Quantize)),
    d=st.integers(1, 70),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    zeros=st.floats(0, 1),
    scale=st.sampled_from([1e-30, 1.0, 1e15]),
)
def test_what_is_unpacked_has_the_bits_of_what_was_packed(compressor, d, seed, dtype, zeros, scale):
    """Every row by itself, from a message that held something else before, and signs of zeros as well."""
    x = scale * rows(3, d, seed, dtype)
    x[:, torch.rand(d, generator=torch.Generator().manual_seed(seed)) < zeros] = 0
    found = compressor(x, range(3), 5)
    for position in range(3):
        message = torch.full((found.width + 9,), 77, dtype=found.dtype)
        packed = message[3:-6]  # anywhere in a longer one
        found.pack(position, packed)
        assert message[:3].tolist() + message[-6:].tolist() == [77] * 9
        row = torch.full((d,), 3.0, dtype=dtype)
        found.unpack(packed, row)
        assert torch.equal(bits_of(row), bits_of(found.rows[position]))


# --- what is rejected ---
AWARE = pol.HeterogeneityAware(2)
CHANGING = [pol.Alternating([W, lazy(W)]), pol.Alternating([W, AWARE]), pol.RandomChoice([W, lazy(W)]), AWARE]
CHANGING += [pol.Cycle([W, lazy(W)]), pol.Matchings(), pol.Matcha(0.5), pol.EdgeSampling(0.5)]
CHANGING += [pol.HeterogeneityAware(2, alternate_with=W), pol.HeterogeneityAwareMatchings(1)]
CHANGING += [pol.LearnedTopology(2, "updates", observe=2)]


@pytest.mark.parametrize("algorithm", [Choco(), QuasiGlobalMomentum(inner=Choco())], ids=["alone", "inside"])
@pytest.mark.parametrize("policy", CHANGING, ids=lambda policy: type(policy).__name__)
def test_weights_that_change_are_rejected_before_the_first_step(policy, algorithm):
    rule = f"{type(policy).__name__} changes the weights .* must stay the same: use one fixed matrix"
    refused(TrainingError, rule, make, algorithm, policy)


def test_weights_that_change_although_the_policy_said_otherwise_are_rejected_before_they_mix(monkeypatch):
    training = make(Choco(), W)
    training.step()
    before = training.network.traffic.parameters
    monkeypatch.setattr(pol.Fixed, "plan", lambda *_: Plan((lazy(W),)))
    refused(TrainingError, "must stay the same", training.step)
    assert training.network.traffic.parameters == before


STAYING = [pol.Fixed(W), pol.Cycle([W]), pol.LearnedTopology(2, "updates", observe=1)]
STAYING += [pol.Alternating([W, metropolis_hastings(W.graph)])]  # equal matrices


@pytest.mark.parametrize("policy", STAYING, ids=lambda policy: type(policy).__name__)
def test_weights_that_stay_are_accepted(policy):
    training = make(Choco(), policy)
    for _ in range(3):
        training.step()
