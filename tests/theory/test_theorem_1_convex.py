"""Theorem 1, convex case (μ = 0), with explicit constants: the mean of f(x̄⁽ᵗ⁾) − f* over the run.

Descent, for η ≤ 1/(4L), f_i convex and L-smooth, and noise that is independent between the nodes, e = f(x̄) − f*:

    E‖x̄⁺ − x*‖² ≤ ‖x̄ − x*‖² − 2η⟨x̄ − x*, (1/n) Σ ∇f_i(x_i)⟩ + η²‖(1/n) Σ ∇f_i(x_i)‖² + η²σ²/n
                ≤ ‖x̄ − x*‖² − η e + (3/2) η L Ξ + η²σ²/n

because the inner product is at least e − (L/2) Ξ and the squared norm at most 2L² Ξ + 4L e. Summed over t = 0 … T, with
ΣΞ ≤ (2/p) η² Σ (D e + A) from the consensus recursion (Ξ_0 = 0), and (3/2) L (2/p) η² D ≤ 1/2:

    (1/(T+1)) Σ E e_t ≤ 2R_0² / (η(T+1)) + 2ησ²/n + (6L/p) η² A,   A = 2 (8−7p)/p · ζ′⋆² + 9 (1−p) σ²

R_0 is the distance of x_0 from the nearest minimizer. There are many of them, but only one ζ′⋆ (test below).
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixwise.graphs import ring
from mixwise.mixing import MixingMatrix, consensus_factor, heterogeneity, relative_heterogeneity, uniform
from theory.instances import mixing_matrices, permutation_mixture, sampled, seeds
from theory.steps import iterate, mixing_constant, step_bound


class Troughs:
    """F_i(x, ξ_i) = ½ ⟨a_i, x⟩² + ⟨c_i + r_i ξ_i, x⟩ with ξ_i = ±1, each half of the time, and Σ c_i = 0.

    Convex and flat: a_i has no last coordinate, so f(x) = ½ xᵀHx, H = (1/n) Σ a_i a_iᵀ, has the minimum 0 along a whole
    line or more, and each f_i, of rank 1, falls without bound along c_i. L = max ‖a_i‖².
    """

    def __init__(self, a: torch.Tensor, c: torch.Tensor, r: torch.Tensor | None = None) -> None:
        self.a, self.c = a, c - c.mean(0)  # (n, d)
        self.r = torch.zeros_like(c) if r is None else r  # (n, d)
        self.H = a.T @ a / len(a)  # (d, d)
        self.L = float(a.square().sum(1).max())

    @classmethod
    def random(cls, n: int, seed: int, constant: float = 1.0, d: int = 3) -> "Troughs":
        """Directions, slopes of this size and noise that differ between the nodes."""
        random = torch.Generator().manual_seed(seed)
        a, c, r = torch.randn(3, n, d, generator=random, dtype=torch.float64)
        a[:, -1] = 0.0
        return cls(a, constant * c, r)

    @property
    def variance(self) -> float:
        """σ²: (1/n) Σ E‖∇F_i(x, ξ_i) − ∇f_i(x)‖², the same at every x."""
        return float(self.r.square().sum(1).mean())

    def excess(self, x: torch.Tensor) -> float:
        """f(x) − f*."""
        return float(x @ self.H @ x) / 2

    def full(self, X: torch.Tensor) -> torch.Tensor:
        """∂f(X); one point (d,) stands for the same point on all nodes."""
        return self.a * (self.a * X).sum(1, keepdim=True) + self.c

    def flat(self) -> torch.Tensor:
        """An orthonormal basis (d, ·) of the directions in which f is constant."""
        values, vectors = torch.linalg.eigh(self.H)
        return vectors[:, values < 1e-12 * self.L]

    def distance_sq(self, x: torch.Tensor) -> float:
        """R²: the squared distance of x from the nearest minimizer."""
        return float((x - self.flat() @ (self.flat().T @ x)).square().sum())


def mean_excess(task: Troughs, W: MixingMatrix, eta: float, steps: int, start: torch.Tensor, seed: int = -1) -> float:
    """(1/(T+1)) Σ (f(x̄⁽ᵗ⁾) − f*) of D-SGD from `start` on all nodes; with noise if there is a seed."""
    points = iterate(start.expand(len(task.c), -1).clone(), sampled(task, seed), W, eta, steps)
    return float(np.mean([task.excess(X.mean(0)) for X in points]))


def largest_step(p: float, L: float) -> float:
    """The η that descent, recursion and summation allow; it is at least p / (16 L)."""
    D = (1 - p) * (36 * L + 4 * L * mixing_constant(p))
    return min(1 / (4 * L), step_bound(p, L), math.sqrt(p / (6 * L * D)) if D > 0 else math.inf)


def constant_A(p: float, zeta_rel_sq: float, sigma_sq: float) -> float:
    """A of the consensus recursion, convex case."""
    return 2 * mixing_constant(p) * zeta_rel_sq + 9 * (1 - p) * sigma_sq


def rate(task: Troughs, W: MixingMatrix, eta: float, steps: int, sigma_sq: float, start: torch.Tensor) -> list[float]:
    """The three terms of the right-hand side above: of the start, of the noise, of the disagreement."""
    p = consensus_factor(W)
    A = constant_A(p, relative_heterogeneity(task.c, W), sigma_sq)
    return [2 * task.distance_sq(start) / (eta * (steps + 1)), 2 * eta * sigma_sq / W.n, 6 * task.L / p * eta**2 * A]


START = torch.tensor([2.0, -1.0, 5.0], dtype=torch.float64)


@settings(max_examples=30)
@given(W=mixing_matrices(2, 7), share=st.floats(0.2, 1), size=st.floats(-1, 2), away=st.floats(-2, 1), seed=seeds)
def test_theorem_1_convex_rate_without_noise(W, share, size, away, seed):
    """No tolerance is needed: the bound is several times what gradient descent alone leaves."""
    p = consensus_factor(W)
    assume(p > 0.05)
    task, start = Troughs.random(W.n, seed, constant=10**size), 10**away * START
    eta = share * largest_step(p, task.L)
    assert eta >= share * p / (16 * task.L)
    assert mean_excess(task, W, eta, 100, start) <= sum(rate(task, W, eta, 100, 0.0, start))


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_theorem_1_convex_rate_with_noise(noise):
    """In expectation over the noise, by Monte Carlo: the bound is above the mean of 30 runs by 5 standard errors."""
    task, W = Troughs.random(6, seed=0), uniform(ring(6))
    task.r *= noise
    eta = largest_step(consensus_factor(W), task.L)
    runs = [mean_excess(task, W, eta, 100, START, seed=seed) for seed in range(30)]
    upper = np.mean(runs) + 5 * np.std(runs, ddof=1) / math.sqrt(len(runs))
    assert upper <= sum(rate(task, W, eta, 100, task.variance, START))


def test_theorem_1_convex_objectives_are_not_strongly_convex():
    """Along a flat direction f does not change, no step moves x̄ there, and R_0 does not see it."""
    task, W = Troughs.random(6, seed=0), uniform(ring(6))
    flat = task.flat()[:, 0]
    assert task.excess(START + 100 * flat) == pytest.approx(task.excess(START), rel=1e-9)
    assert task.distance_sq(START + 100 * flat) == pytest.approx(task.distance_sq(START), rel=1e-9)
    *_, last = iterate(START.expand(6, -1).clone(), task.full, W, largest_step(consensus_factor(W), task.L), 50)
    assert float(last.mean(0) @ flat) == pytest.approx(float(START @ flat), rel=1e-9)


def test_theorem_1_convex_gradients_are_the_same_at_all_minimizers():
    """‖∇f_i(x) − ∇f_i(y)‖², summed over i, is at most 2Ln (f(x) − f(y)) = 0: one ζ′⋆, whichever x* is taken."""
    for seed in range(20):
        task = Troughs.random(5, seed)
        another = 10 * task.flat().sum(1)
        torch.testing.assert_close(task.full(another), task.c, rtol=0, atol=1e-12)


def test_theorem_1_convex_rate_needs_each_of_its_terms():
    """Where only one term is not zero, the error is not zero; and the first is at most 8 times too large."""
    W = uniform(ring(6))
    p, zero = consensus_factor(W), torch.zeros(6, 2, dtype=torch.float64)
    along = zero + torch.tensor([1.0, 0.0], dtype=torch.float64)  # a_i: all nodes curved alike
    eta, steps = largest_step(p, 1.0), 2000
    # gradient descent on ½hx² with h = 10/(ηT): Σ ½h(1 − ηh)²ᵗ R_0² is nearly R_0²/4η
    slow = Troughs(along * math.sqrt(10 / (eta * steps)), zero)
    from_start = rate(slow, W, eta, steps, 0.0, along[0])
    assert from_start[1:] == [0.0, 0.0]
    assert from_start[0] / 8.1 < mean_excess(slow, W, eta, steps, along[0]) <= from_start[0]
    # noise that all nodes would have alike, averaged: from a minimizer, and without disagreement of the gradients
    noisy = Troughs(along, zero, r=along)
    assert rate(noisy, W, eta, steps, 1.0, zero[0])[0] == 0.0
    assert mean_excess(noisy, W, eta, steps, zero[0], seed=0) > rate(noisy, W, eta, steps, 1.0, zero[0])[1] / 10
    # slopes that differ, and curvatures that differ with them: x̄ leaves the minimizer at which it started
    curved, sloped = (torch.tensor([[1.0], [other]] * 3).double() for other in (0.2, -1.0))
    apart = Troughs(along * curved, along * sloped)
    assert rate(apart, W, eta, steps, 0.0, zero[0])[:2] == [0.0, 0.0]
    assert 0 < mean_excess(apart, W, eta, steps, zero[0]) <= rate(apart, W, eta, steps, 0.0, zero[0])[2]


def steps_for(epsilon: float, R_sq: float, p: float, L: float, zeta_rel_sq: float) -> tuple[float, int]:
    """η, T for error ε without noise: O(√L ζ′/(p ε^{3/2}) + L/(p ε)) · R_0² steps, as in the theorem, whatever ζ is."""
    eta = largest_step(p, L)
    if zeta_rel_sq > 0:
        eta = min(eta, math.sqrt(epsilon * p / (12 * L * constant_A(p, zeta_rel_sq, 0.0))))
    T = math.ceil(4 * R_sq / (eta * epsilon))
    # 1/η ≤ 16 L/p + √192 √L ζ′/(p √ε), since A ≤ 16 ζ′²/p
    allowed = 64 * (L / (p * epsilon) + math.sqrt(L * zeta_rel_sq) / (p * epsilon**1.5)) * R_sq
    assert allowed + 1 >= T
    return eta, T


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
@pytest.mark.parametrize("epsilon", [0.5, 0.3])
def test_theorem_1_convex_number_of_iterations(seed, epsilon):
    """Also for the mean of the iterates, whose value is at most the mean of the values."""
    W, task = permutation_mixture(6, seed), Troughs.random(6, seed, constant=1.0)
    start = START / 2
    R_sq, zeta_rel_sq = task.distance_sq(start), relative_heterogeneity(task.c, W)
    eta, T = steps_for(epsilon, R_sq, consensus_factor(W), task.L, zeta_rel_sq)
    means = torch.stack([X.mean(0) for X in iterate(start.expand(6, -1).clone(), task.full, W, eta, T)])
    error = float(np.mean([task.excess(x) for x in means]))
    assert task.excess(means.mean(0)) <= error <= epsilon


def test_theorem_1_convex_number_of_iterations_follows_relative_heterogeneity_alone():
    """Same ring, weights, p and ζ: the steps that suffice for ζ′ = 0 do suffice if data have period 3, also at 10 ζ,
    and do not if the same data lie sorted around the ring, where ζ′ is nearly ζ."""
    n, epsilon, W = 12, 0.1, uniform(ring(12))
    start, nodes = torch.tensor([0.7, 7.0]).double(), torch.arange(n)
    c = torch.tensor([[200.0, 0.0], [-100.0, 0.0], [-100.0, 0.0]]).double()
    a = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.5, 0.0]]).double()
    spread, spread_ten_times, ordered = (
        Troughs(a[types], size * c[types]) for types, size in ((nodes % 3, 1), (nodes % 3, 10), (nodes // 4, 1))
    )
    assert heterogeneity(spread.c) == pytest.approx(heterogeneity(ordered.c))
    assert relative_heterogeneity(spread.c, W) < 1e-25 * heterogeneity(spread.c)
    assert relative_heterogeneity(ordered.c, W) > 0.5 * heterogeneity(ordered.c)
    eta, T = steps_for(epsilon, spread.distance_sq(start), consensus_factor(W), spread.L, 0.0)
    errors = [mean_excess(task, W, eta, T, start) for task in (spread, spread_ten_times, ordered)]
    assert errors[0] <= epsilon
    assert errors[1] == pytest.approx(errors[0], rel=1e-9)  # ζ does not enter at all
    assert errors[2] > 5 * epsilon
