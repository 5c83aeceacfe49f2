"""Rows that travel while the gradients are computed: X⁺ = Wᵀ X − U, with the weights made one step before."""

import json

import numpy as np
import pytest
import torch
from mixwise.train.waiting import as_matrices, as_tensors

from mixwise.algorithms import CombineWhileAdapt, QuasiGlobalMomentum
from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware, Product, RandomChoice
from mixwise.sketch import GaussianSketch
from mixwise.tasks import random_quadratics
from mixwise.training import Training

N, D = 6, 5
W = metropolis_hastings(ring(N))
OTHER = MixingMatrix.from_dense(0.6 * np.eye(N) + 0.4 * np.roll(np.eye(N), 1, axis=1), complete(N))
TASK = random_quadratics(N, dim=D, noise=0.3, seed=0)


def policies():
    return {
        "fixed": Fixed(W),
        "random": RandomChoice([W, OTHER], seed=3),
        "two rounds": Product(Fixed(W), RandomChoice([W, OTHER], seed=3)),
        "heterogeneity-aware": HeterogeneityAware(period=2, sketch=GaussianSketch(8, seed=0)),
    }


def make(policy, local_steps=1, algorithm=None, network=None):
    return Training(
        TASK,
        network or SimulatedNetwork(complete(N)),
        policy,
        algorithm or CombineWhileAdapt(),
        lambda blocks: torch.optim.SGD(blocks, lr=0.02, momentum=0.9),
        local_steps=local_steps,
    )


@pytest.mark.parametrize("name", policies())
def test_the_weights_of_a_mixing_are_those_made_one_mixing_before(name):
    """X⁺ = (W₁ W₂ ⋯)ᵀ X − U; the plan of the first mixing is the identity, and every plan tells what was done."""
    made, policy = [np.eye(N)], policies()[name]
    ask = policy.plan
    policy.plan = lambda *args: made.append((plan := ask(*args)).params_product) or plan
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
    tensors, values = first.state()
    second = make(policies()[name], local_steps)
    second.load_state({k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(values)))
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


class WatchedTask:
    def __init__(self, events):
        self.events = events

    def __getattr__(self, name):
        return getattr(TASK, name)

    def losses_and_gradients(self, X, nodes, t):
        self.events.append("gradients")
        return TASK.losses_and_gradients(X, nodes, t)


def test_the_rows_set_out_before_the_gradients_are_computed():
    events = []
    training = Training(
        WatchedTask(events),
        Watched(complete(N), events),
        Fixed(W),
        CombineWhileAdapt(),
        lambda blocks: torch.optim.SGD(blocks, lr=0.02),
        local_steps=2,
    )
    for _ in range(4):
        training.step()
    assert events == ["start", "gradients", "gradients"] * 2


def test_around_it_quasi_global_momentum_mixes_after_the_step():
    events = []
    algorithm = QuasiGlobalMomentum(inner=CombineWhileAdapt())
    training = Training(
        TASK, Watched(complete(N), events), Fixed(W), algorithm, lambda blocks: torch.optim.SGD(blocks, lr=0.02)
    )
    training.step()
    assert events == []
    assert training.network.traffic.parameters == W.messages * D * 8


@pytest.mark.parametrize("nodes", [range(2), range(2, 6), range(3, 4)])
def test_a_matrix_known_in_part_is_kept_by_the_rows_and_columns_of_its_nodes(nodes):
    """Whoever owns which nodes later takes its rows of both."""
    whole, pattern = OTHER, OTHER.graph.pattern

    def part(own):
        known = np.isin(pattern.rows, own) | np.isin(pattern.cols, own)
        return MixingMatrix(whole.graph, np.where(known, whole.weights, 0.0), nodes=own)

    pieces = [as_tensors((part(own), whole)) for own in (range(3), range(3, 6))]
    names = pieces[0][0]
    tensors = {
        name: torch.cat([piece[name] for piece, _ in pieces])[nodes.start : nodes.stop]
        if name in ("0.rows", "0.columns")
        else pieces[0][0][name]
        for name in names
    }
    assert as_matrices(tensors, json.loads(json.dumps(pieces[0][1])), nodes) == (part(nodes), whole)
