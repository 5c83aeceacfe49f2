"""Rows that travel while the gradients are computed: X⁺ = Wᵀ X − U, with the weights made one step before."""

import numpy as np
import pytest
import torch

from builders import simulated, stepped
from mixwise.algorithms import CombineWhileAdapt, QuasiGlobalMomentum
from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware, Product, RandomChoice
from mixwise.sketch import GaussianSketch
from mixwise.tasks import QuadraticTask, random_quadratics

N, D = 6, 5
W = metropolis_hastings(ring(N))
OTHER = MixingMatrix.from_dense(0.6 * np.eye(N) + 0.4 * np.roll(np.eye(N), 1, axis=1), complete(N))
TASK = random_quadratics(N, dim=D, noise=0.3, seed=0)


def policies():
    return {
        "fixed": Fixed(W),
        "random": RandomChoice([W, OTHER]),
        "two rounds": Product([Fixed(W), RandomChoice([W, OTHER])]),
        "heterogeneity-aware": HeterogeneityAware(period=2, sketch=GaussianSketch(8, seed=0)),
    }


def make(policy, local_steps=1):
    options = {"lr": 0.02, "momentum": 0.9, "local_steps": local_steps, "task": TASK}
    return simulated(policy, CombineWhileAdapt(), complete(N), **options)


@pytest.mark.parametrize("name", policies())
def test_the_weights_of_a_mixing_are_those_made_one_mixing_before(name, monkeypatch):
    """X⁺ = (W₁ W₂ ⋯)ᵀ X − U; the plan of the first mixing is the identity, and every plan tells what was done."""
    made, policy = [np.eye(N)], policies()[name]
    ask = type(policy).plan
    watched = lambda *args: made.append((plan := ask(*args)).params_product) or plan  # noqa: E731
    monkeypatch.setattr(type(policy), "plan", watched)
    training = make(policy)
    for t in range(6):
        X, plan = training.X.clone(), training.step().plan
        (rows,) = training.optimizer.param_groups[0]["params"]
        U = 0.02 * training.optimizer.state[rows]["momentum_buffer"]
        torch.testing.assert_close(training.X, torch.from_numpy(made[t].T) @ X - U, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(plan.params_product, made[t])
    assert not np.array_equal(made[1], made[0])


def watched(monkeypatch, algorithm, local_steps=1):
    """A run, and what happens when in it: rows set out, gradients are computed."""
    events = []
    for kind, method in ((SimulatedNetwork, "start_mix"), (QuadraticTask, "losses_and_gradients")):
        original = getattr(kind, method)
        told = lambda *args, m=method, f=original, **options: events.append(m) or f(*args, **options)  # noqa: E731
        monkeypatch.setattr(kind, method, told)
    return simulated(W, algorithm, complete(N), task=TASK, local_steps=local_steps), events


def test_the_rows_set_out_before_the_gradients_are_computed(monkeypatch):
    training, events = watched(monkeypatch, CombineWhileAdapt(), local_steps=2)
    stepped(training, 4)
    assert events == ["start_mix", "losses_and_gradients", "losses_and_gradients"] * 2


def test_around_it_quasi_global_momentum_mixes_after_the_step(monkeypatch):
    training, events = watched(monkeypatch, QuasiGlobalMomentum(inner=CombineWhileAdapt()))
    training.step()
    assert events == ["losses_and_gradients"]
    assert training.network.traffic.parameters == W.messages * D * 8
