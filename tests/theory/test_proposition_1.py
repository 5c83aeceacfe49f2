"""Proposition 1: weights that were optimal H steps ago are still good, if the steps are small."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixwise.graphs import Graph, ring
from mixwise.mixing import MixingMatrix, gradient_mixing_error, gram_matrix, minimize_gme
from mixwise.plan import Plan
from mixwise.policies import Look, Policy
from mixwise.tasks import random_quadratics
from strategies import connected_graphs
from theory.instances import ROUNDING, Bowls, Gradients, one_draw, seeds
from theory.steps import trajectory


class ExactGme(Policy):
    """The proposition's policy: every H steps, the GME weights of the full gradients at the mean x̄⁽ᵗ⁾."""

    def __init__(self, gradients: Gradients, period: int) -> None:
        self.gradients, self.period = gradients, period
        self.used: list[MixingMatrix] = []  # W⁽⁰⁾, W⁽¹⁾, …

    def looks(self, t, state):
        return Look(update=True)

    def plan(self, round, state, network):
        X = round.before
        if round.t % self.period == 0:
            self.used.append(minimize_gme(gram_matrix(self.gradients(X.mean(0).expand_as(X))), network.graph).W)
        else:
            self.used.append(self.used[-1])
        return Plan((self.used[-1],))


def both_sides(gradients: Gradients, L: float, graph: Graph, X: torch.Tensor, rates: list[float], H: int, t: int):
    """GME at t + H with the weights of t; GME at t; and the drift term H L² Σ η_{t+i}² ‖∂f(X⁽ᵗ⁺ⁱ⁾)‖²."""
    policy = ExactGme(gradients, H)
    points = trajectory(X, gradients, graph, policy, rates)
    later, now = (gradient_mixing_error(gradients(points[s].mean(0).expand_as(X)), policy.used[t]) for s in (t + H, t))
    drift = sum(rates[t + i] ** 2 * float(gradients(points[t + i]).square().sum()) for i in range(H))
    return later, now, H * L**2 * drift


@given(graph=connected_graphs(2, 7), H=st.integers(1, 5), seed=seeds)
def test_proposition_1_old_weights_leave_twice_the_error_plus_the_drift(graph, H, seed):
    """GME⁽ᵗ⁺ᴴ⁾(W⁽ᵗ⁾) ≤ 2 GME⁽ᵗ⁾(W⁽ᵗ⁾) + 2 H L² Σ_{i<H} η_{t+i}² ‖∂f(X⁽ᵗ⁺ⁱ⁾)‖²_F, from t = 0 and from t = H.

    Corrected: the steps are η_{t+i}, not η_t, and X̄⁽ᵗ⁺ᴴ⁾ − X̄⁽ᵗ⁾ = −Σ η ∂f(X)·J, where the proof forgets J
    (harmless: ‖∂f J‖ ≤ ‖∂f‖). L is that of the worst node.
    """
    task = random_quadratics(graph.n, dim=3, noise=0.0, seed=seed)
    random = np.random.default_rng(seed)
    rates = (random.uniform(0.01, 0.3, 2 * H) / task.smoothness).tolist()  # neither constant nor tiny
    X = torch.from_numpy(random.standard_normal((graph.n, 3)))
    for t in (0, H):
        later, now, drift = both_sides(one_draw(task), task.smoothness, graph, X, rates, H, t)
        assert later <= 2 * now + 2 * drift + ROUNDING * (now + drift)


def drifting_apart(n: int = 8) -> Bowls:
    """All gradients equal c = 1 at x = 0, but the first half of the nodes is curved and the second half flat."""
    h = torch.tensor([1.0] * (n // 2) + [0.0] * (n // 2), dtype=torch.float64)[:, None]
    return Bowls(h, torch.ones(n, 1, dtype=torch.float64))


def test_proposition_1_needs_the_drift_term_and_its_factor_H():
    """From GME = 0, the error after H = 64 small equal steps is above the bound without H and below the one with H."""
    H, task, graph = 64, drifting_apart(), ring(8)
    later, now, drift = both_sides(task.full, task.L, graph, torch.zeros(8, 1).double(), [1e-3] * H, H, t=0)
    assert now < 1e-20
    assert 2 * drift / H < later < 2 * drift


def test_proposition_1_with_the_printed_step_size_fails_in_a_warm_up():
    """As printed, all H steps are counted with η_t: with a warm-up from a tiny η_t the bound would be too small."""
    task, graph, rates = drifting_apart(), ring(8), [1e-6, 0.1, 0.2]
    later, now, drift = both_sides(task.full, task.L, graph, torch.zeros(8, 1).double(), rates, H=3, t=0)
    policy = ExactGme(task.full, 3)
    points = trajectory(torch.zeros(8, 1).double(), task.full, graph, policy, rates)
    printed = 2 * now + 2 * 3 * rates[0] ** 2 * task.L**2 * sum(float(task.full(X).square().sum()) for X in points[:3])
    assert printed < 1e-6 * later
    assert later <= 2 * now + 2 * drift


def test_proposition_1_is_of_use_when_the_steps_are_small():
    """On the paper's quadratics the drift is a correction: 100 times smaller steps make it 10⁴ times smaller."""
    task, graph = random_quadratics(8, dim=10, noise=0.0, seed=3), ring(8)
    X = task.initial(range(8))
    (later, now, drift), (_, _, small) = (
        both_sides(one_draw(task), task.smoothness, graph, X, [eta] * 4, 4, 0) for eta in (1e-4, 1e-6)
    )
    assert small == pytest.approx(1e-4 * drift, rel=0.1)
    assert drift < now
    assert later == pytest.approx(now, rel=0.1)
