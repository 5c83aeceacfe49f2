"""Theorem 1, strongly convex case: the error that remains at a fixed step size follows ζ′⋆² η² / p², not ζ.

Curvatures differ between the nodes; were they equal, x̄ would follow exact gradient descent whatever the weights are.
"""

from collections import deque
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from mixwise.graphs import ring
from mixwise.mixing import consensus_factor, heterogeneity, relative_heterogeneity, uniform
from mixwise.tasks import QuadraticTask
from theory.instances import Bowls, one_draw, slow_wave
from theory.steps import iterate

Arrangement = tuple[int, ...]  # the kind of each node
N, ETA, STEPS = 12, 0.005, 3000  # gradient descent itself then leaves ‖x − x*‖² of 1e-11


def three_kinds(arrangement: Arrangement, scale: float) -> QuadraticTask:
    """f_i = ‖A_k(x − 𝟏) + scale · r_k‖² for node i of kind k = arrangement[i]; x* = 𝟏 since Σ_k A_kᵀ r_k = 0."""
    random = torch.Generator().manual_seed(0)
    A = torch.eye(3).double() + 0.4 * torch.randn(3, 3, 3, generator=random, dtype=torch.float64)
    r = torch.randn(3, 3, generator=random, dtype=torch.float64)
    r[2] = -torch.linalg.solve(A[2].T, A[0].T @ r[0] + A[1].T @ r[1])
    b = scale * r - A.sum(2)
    return QuadraticTask(A[list(arrangement)], b[list(arrangement)])


def final(points: Iterator[torch.Tensor]) -> torch.Tensor:
    return deque(points, maxlen=1).pop()


SPREAD, SORTED = tuple(i % 3 for i in range(N)), tuple(i // 4 for i in range(N))


@cache
def remaining_error(arrangement: Arrangement, scale: float) -> float:
    """‖x̄ − x*‖² at the end of D-SGD on the ring, without noise, from x = 0 on all nodes."""
    W, task = uniform(ring(N)), three_kinds(arrangement, scale)
    X = final(iterate(torch.zeros(N, 3).double(), one_draw(task), W, ETA, STEPS))
    return float((X.mean(0) - task.optimum).square().sum())


def test_theorem_1_same_p_and_same_heterogeneity_but_only_one_arrangement_converges():
    W = uniform(ring(N))
    spread, ordered = three_kinds(SPREAD, 1.0), three_kinds(SORTED, 1.0)
    for x in (spread.optimum, torch.zeros(3).double()):
        G, H = spread.full_gradients(x), ordered.full_gradients(x)
        assert heterogeneity(G) == pytest.approx(heterogeneity(H), rel=1e-9)
        assert relative_heterogeneity(G, W) < 1e-25 * heterogeneity(G)
        assert relative_heterogeneity(H, W) > 0.3 * heterogeneity(H)
    torch.testing.assert_close(spread.optimum, torch.ones(3).double())
    assert remaining_error(SPREAD, 1.0) < 1e-10  # what gradient descent leaves
    assert remaining_error(SORTED, 1.0) > 1e-4


def test_theorem_1_ten_times_the_heterogeneity_leaves_the_error_unchanged_where_nothing_is_left_after_mixing():
    """With ζ′ = 0, D-SGD takes the same steps of x̄ at ζ and at 10 ζ."""
    zetas = [heterogeneity(three_kinds(SPREAD, x).full_gradients(torch.ones(3).double())) for x in (1.0, 10.0)]
    assert zetas[1] == pytest.approx(100 * zetas[0])
    small, large = (remaining_error(SPREAD, scale) for scale in (1.0, 10.0))
    assert abs(large - small) < 1e-15  # both are transients; rounding of ζ is far below


def test_theorem_1_error_grows_with_the_square_of_the_relative_heterogeneity():
    """x* and the curvatures stay, ζ′⋆ is scaled: the fixed point is linear in it, so the error goes with ζ′⋆²."""
    errors = {scale: remaining_error(SORTED, scale) for scale in (1.0, 3.0, 10.0)}
    # 1 % for what is left of the transient, which does not scale
    assert errors[3.0] / errors[1.0] == pytest.approx(9, rel=0.01)
    assert errors[10.0] / errors[1.0] == pytest.approx(100, rel=0.01)


def wave_errors(n: int, rates: list[float]) -> tuple[list[float], float, float]:
    """f(x̄) − f* that remains at each step size, p and ζ′⋆²; curvatures and gradients along a ring's slowest wave."""
    W, wave, _ = slow_wave(n)
    task = Bowls(1 + wave / 2, wave)
    start, eta = task.optimum.expand(n, len(rates)), torch.tensor(rates).double()  # one column per step size
    X = final(iterate(start, task.full, W, eta, round(9 / min(rates))))  # e⁻⁹ of the transient is left
    errors = [task.excess(x) for x in X.mean(0)[:, None]]
    return errors, consensus_factor(W), relative_heterogeneity(task.full(task.optimum), W)


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_theorem_1_error_goes_with_the_square_of_the_step_size():
    """ε ∝ η²: solving √L ζ′⋆/(μ p √ε) = 1/(μη) for ε. The band allows the next order, of relative size ηL/p ≤ 5 %."""
    rates = [0.001, 0.002, 0.004, 0.008]
    errors, _, _ = wave_errors(12, rates)
    assert 1.85 < slope(rates, errors) < 2.05


def test_theorem_1_error_goes_with_the_inverse_square_of_the_consensus_factor():
    """ε/ζ′⋆² ∝ p⁻² from p = 0.56 (6 nodes) to p = 0.045 (24 nodes): a factor of 150 that p⁻¹ or p⁻³ would miss by 12.

    The exact factor on this wave is 1/(1 − λ)² = (1 + λ)²/p² with λ² = 1 − p; (1 + λ)² moves the slope by 0.1.
    """
    errors, factors, zetas = zip(*(wave_errors(n, [0.002]) for n in (6, 9, 12, 18, 24)), strict=True)
    assert factors[0] / factors[-1] > 12
    assert -2.2 < slope(factors, np.divide([error for (error,) in errors], zetas)) < -1.8
