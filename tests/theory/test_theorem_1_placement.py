"""Theorem 1, strongly convex case: the error that remains at a fixed step size follows ζ′⋆² η² / p², not ζ.

Curvatures differ between the nodes; were they equal, x̄ would follow exact gradient descent whatever the weights are.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mixwise.graphs import ring
from mixwise.mixing import consensus_factor, heterogeneity, relative_heterogeneity, uniform
from mixwise.tasks import QuadraticTask
from theory.instances import Bowls, iterate, slow_wave

N, ETA, STEPS = 12, 0.005, 3000  # gradient descent itself then leaves ‖x − x*‖² of 1e-11


def three_kinds(arrangement: torch.Tensor, scale: float) -> QuadraticTask:
    """f_i = ‖A_k(x − 𝟏) + scale · r_k‖² for node i of kind k = arrangement[i]; x* = 𝟏 since Σ_k A_kᵀ r_k = 0."""
    random = torch.Generator().manual_seed(0)
    A = torch.eye(3).double() + 0.4 * torch.randn(3, 3, 3, generator=random, dtype=torch.float64)
    r = torch.randn(3, 3, generator=random, dtype=torch.float64)
    r[2] = -torch.linalg.solve(A[2].T, A[0].T @ r[0] + A[1].T @ r[1])
    b = scale * r - A.sum(2)
    return QuadraticTask(A[arrangement], b[arrangement])


def final(points: Iterator[torch.Tensor]) -> torch.Tensor:
    return deque(points, maxlen=1).pop()


SPREAD, SORTED = torch.arange(N) % 3, torch.arange(N) // 4


def remaining_error(task: QuadraticTask) -> float:
    """‖x̄ − x*‖² at the end of D-SGD on the ring, without noise, from x = 0 on all nodes."""
    W = uniform(ring(N))

    def gradients(X: torch.Tensor) -> torch.Tensor:
        return task.losses_and_gradients(X, range(N), 0)[1]

    X = final(iterate(torch.zeros(N, 3).double(), gradients, W, ETA, STEPS))
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
    assert remaining_error(spread) < 1e-10  # what gradient descent leaves
    assert remaining_error(ordered) > 1e-4


def test_theorem_1_ten_times_the_heterogeneity_leaves_the_error_unchanged_where_nothing_is_left_after_mixing():
    """With ζ′ = 0, D-SGD takes the same steps of x̄ at ζ and at 10 ζ."""
    assert heterogeneity(three_kinds(SPREAD, 10.0).full_gradients(torch.ones(3).double())) == pytest.approx(
        100 * heterogeneity(three_kinds(SPREAD, 1.0).full_gradients(torch.ones(3).double()))
    )
    small, large = (remaining_error(three_kinds(SPREAD, scale)) for scale in (1.0, 10.0))
    assert abs(large - small) < 1e-15  # both are transients; rounding of ζ is far below


def test_theorem_1_error_grows_with_the_square_of_the_relative_heterogeneity():
    """x* and the curvatures stay, ζ′⋆ is scaled: the fixed point is linear in it, so the error goes with ζ′⋆²."""
    errors = {scale: remaining_error(three_kinds(SORTED, scale)) for scale in (1.0, 3.0, 10.0)}
    # 1 % for what is left of the transient, which does not scale
    assert errors[3.0] / errors[1.0] == pytest.approx(9, rel=0.01)
    assert errors[10.0] / errors[1.0] == pytest.approx(100, rel=0.01)


def wave_error(n: int, eta: float) -> tuple[float, float, float]:
    """f(x̄) − f* that remains, p and ζ′⋆², for curvatures and gradients along the slowest wave of a ring."""
    W, wave, _ = slow_wave(n)
    task = Bowls(1 + wave / 2, wave)
    X = final(iterate(task.optimum.expand(n, 1), task.full, W, eta, round(12 / eta)))  # e⁻¹² of the transient is left
    return task.excess(X.mean(0)), consensus_factor(W), relative_heterogeneity(task.full(task.optimum), W)


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_theorem_1_error_goes_with_the_square_of_the_step_size():
    """ε ∝ η²: solving √L ζ′⋆/(μ p √ε) = 1/(μη) for ε. The band allows the next order, of relative size ηL/p ≤ 5 %."""
    rates = [0.001, 0.002, 0.004, 0.008]
    errors = [wave_error(12, eta)[0] for eta in rates]
    assert 1.85 < slope(rates, errors) < 2.05


def test_theorem_1_error_goes_with_the_inverse_square_of_the_consensus_factor():
    """ε/ζ′⋆² ∝ p⁻² from p = 0.56 (6 nodes) to p = 0.045 (24 nodes): a factor of 150 that p⁻¹ or p⁻³ would miss by 12.

    The exact factor on this wave is 1/(1 − λ)² = (1 + λ)²/p² with λ² = 1 − p; (1 + λ)² moves the slope by 0.1.
    """
    errors, factors, zetas = zip(*(wave_error(n, 0.002) for n in (6, 9, 12, 18, 24)), strict=True)
    assert factors[0] / factors[-1] > 12
    assert -2.2 < slope(factors, np.divide(errors, zetas)) < -1.8
