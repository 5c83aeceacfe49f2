"""Lemma on double mixing: disagreement after a step = mixed disagreement − η · mixed disagreement of the gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import random_rows
from mixwise.algorithms import DecoupledDSGD
from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings
from mixwise.policies import Alternating, Decoupled, Fixed, HeterogeneityAware
from mixwise.sketch import ExactSketch
from mixwise.tasks import random_quadratics
from strategies import connected_graphs
from theory.instances import mixing_matrices, one_draw, optimized_weights, permutation_mixture, seeds
from theory.steps import trajectory

# Absolute, for rows of size 10: rounding, and column sums of an optimized W that are 1 within 1e-9 (J W = J).
CLOSE = {"rtol": 0.0, "atol": 1e-7}
rates_of_three_steps = st.lists(st.floats(1e-4, 1e-2), min_size=3, max_size=3, unique=True)


def centered(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(0)


def mixed(W: MixingMatrix, rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(W.to_dense()).T @ rows


def noisy_gradients(n: int, seed: int):
    return one_draw(random_quadratics(n, dim=3, noise=0.5, seed=seed))


def assert_double_mixing(points, gradients, rates, params, updates=None) -> None:
    """X⁽ᵗ⁾ − X̄⁽ᵗ⁾ = (X − X̄) W_p − η (∂F − mean) W_g, all at t − 1."""
    for X, after, eta, W_p, W_g in zip(points[:-1], points[1:], rates, params, updates or params, strict=True):
        expected = mixed(W_p, centered(X)) - eta * mixed(W_g, centered(gradients(X)))
        torch.testing.assert_close(centered(after), expected, **CLOSE)


@given(W=mixing_matrices(), rates=rates_of_three_steps, seed=seeds)
def test_lemma_double_mixing_of_dsgd(W, rates, seed):
    """Corrected: the step size too is η_{t−1}, not η_t."""
    gradients, other = noisy_gradients(W.n, seed), permutation_mixture(W.n, seed)
    policy = Alternating([Fixed(W), Fixed(other)])
    points = trajectory(random_rows(W.n, 3, seed), gradients, complete(W.n), policy, rates)
    assert_double_mixing(points, gradients, rates, [W, other, W])


def test_lemma_double_mixing_with_the_printed_index_of_the_step_size_fails():
    W, rates = lazy(metropolis_hastings(ring(4))), [0.01, 0.001]
    gradients, X = noisy_gradients(4, 0), random_rows(4, 3)
    after = trajectory(X, gradients, W.graph, Fixed(W), rates)[1]
    printed = mixed(W, centered(X)) - rates[1] * mixed(W, centered(gradients(X)))
    assert (centered(after) - printed).abs().max() > 0.01


class Watched(HeterogeneityAware):
    """Remembers the weights that it made last."""

    def plan(self, round, state, network):
        plan = super().plan(round, state, network)
        object.__setattr__(self, "W", plan.params[0])
        return plan


@given(graph=connected_graphs(2, 7), rates=rates_of_three_steps, seed=seeds)
def test_lemma_double_mixing_of_heterogeneity_aware_dsgd(graph, rates, seed):
    """The identity is one of matrices, so it also holds when W follows from the gradients of the same step."""
    gradients, policy = noisy_gradients(graph.n, seed), Watched(period=1, sketch=ExactSketch())
    points = trajectory(random_rows(graph.n, 3, seed), gradients, graph, policy, rates[:1])
    assert_double_mixing(points, gradients, rates[:1], [policy.W])


@given(graph=connected_graphs(2, 7), rates=rates_of_three_steps, seed=seeds)
def test_lemma_double_mixing_of_decoupled_mixing(graph, rates, seed):
    """As in the appendix."""
    W_p, W_g = metropolis_hastings(graph), optimized_weights(graph, seed)
    gradients, policy = noisy_gradients(graph.n, seed), Decoupled(params=Fixed(W_p), updates=Fixed(W_g))
    points = trajectory(random_rows(graph.n, 3, seed), gradients, graph, policy, rates, DecoupledDSGD())
    assert_double_mixing(points, gradients, rates, [W_p] * 3, [W_g] * 3)
