"""Rows that travel while the gradients are computed: X⁺ = Wᵀ X − U, with the weights made one step before."""

import numpy as np
import pytest
import torch

from builders import simulated
from mixwise.algorithms import CombineWhileAdapt, QuasiGlobalMomentum
from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware, Product, RandomChoice
from mixwise.sketch import GaussianSketch
from mixwise.tasks import QuadraticTask, random_quadratics
from planning import reloaded

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


def make(policy, local_steps=1, network=None):
    options = {"lr": 0.02, "momentum": 0.9, "local_steps": local_steps, "network": network}
    return simulated(policy, CombineWhileAdapt(), complete(N), task=TASK, **options)


@pytest.mark.parametrize("name", policies())
def test_the_weights_of_a_mixing_are_those_made_one_mixing_before(name, monkeypatch):
    """X⁺ = (W₁ W₂ ⋯)ᵀ X − U; the plan of the first mixing is the identity, and every plan tells what was done."""
    made, policy = [np.eye(N)], policies()[name]
    ask = type(policy).plan
    watched = lambda *args: made.append((plan := ask(*args)).params_product) or plan  # noqa: E731
    monkeypatch.setattr(type(policy), "plan", watched)
    training = make(policy)
    for t in range(6):
        X = training.X.clone()
        plan = training.step().plan
        U = X - stepped(X, training)
        expected = torch.from_numpy(made[t].T) @ X - U
        torch.testing.assert_close(training.X, expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(plan.params_product, made[t])
    assert not np.array_equal(made[1], made[0])


def stepped(X, training):
    """X′, from the momentum that the optimizer has."""
    return X - 0.02 * torch.cat([training.optimizer.state[p]["momentum_buffer"] for p in blocks(training)], dim=1)


def blocks(training):
    return training.optimizer.param_groups[0]["params"]


@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize(("local_steps", "stop"), [(1, 1), (1, 4), (3, 4), (3, 6)])
def test_weights_that_wait_survive_a_checkpoint(name, local_steps, stop):
    """The same bits and the same bytes, also if the run stops while the rows travel."""
    whole, first = make(policies()[name], local_steps), make(policies()[name], local_steps)
    for _ in range(9):
        whole.step()
    for _ in range(stop):
        first.step()
    second = make(policies()[name], local_steps)
    second.load_state(reloaded(first.state(), first.network.nodes))
    for _ in range(9 - stop):
        second.step()
    assert torch.equal(second.X, whole.X)
    assert second.network.traffic == whole.network.traffic


class Watched(SimulatedNetwork):
    """A network that writes down what happens when."""

    def __init__(self, graph, events):
        super().__init__(graph)
        self.events = events

    def start_mix(self, rows, W):
        self.events.append("start")
        return super().start_mix(rows, W)


class WatchedTask(QuadraticTask):
    def __init__(self, events):
        super().__init__(TASK.A, TASK.b, TASK.noise, TASK.seed)
        self.events = events

    def losses_and_gradients(self, X, nodes, t):
        self.events.append("gradients")
        return super().losses_and_gradients(X, nodes, t)


def test_the_rows_set_out_before_the_gradients_are_computed():
    events = []
    network = Watched(complete(N), events)
    training = simulated(W, CombineWhileAdapt(), network=network, task=WatchedTask(events), local_steps=2)
    for _ in range(4):
        training.step()
    assert events == ["start", "gradients", "gradients"] * 2


def test_around_it_quasi_global_momentum_mixes_after_the_step():
    events = []
    algorithm = QuasiGlobalMomentum(inner=CombineWhileAdapt())
    training = simulated(W, algorithm, network=Watched(complete(N), events), task=TASK)
    training.step()
    assert events == []
    assert training.network.traffic.parameters == W.messages * D * 8
