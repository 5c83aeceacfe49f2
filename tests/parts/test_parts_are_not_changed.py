"""Algorithms and policies are frozen values, so that runs can share them: each is as if its parts were new."""

from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from torch import nn

import mixwise as mw
import mixwise.policies as pol
from builders import sgd
from every_algorithm import GRAPH, MH, N, runs
from mixwise.algorithms import DSGD, QuasiGlobalMomentum
from mixwise.network import Faults, FaultyNetwork, SimulatedNetwork
from mixwise.tasks import random_quadratics


@pytest.mark.parametrize("name", runs())
def test_parts_are_frozen_equal_and_hashable(name):
    pair, again = runs()[name][:2], runs()[name][:2]
    assert (pair, hash(pair)) == (again, hash(again))
    for part in pair:
        for attribute in ("anything", *(field.name for field in fields(part))):
            with pytest.raises(FrozenInstanceError):
                setattr(part, attribute, 1)


def records(seed, algorithm, policy, network, options):
    task, options = random_quadratics(N, seed=seed), {"optimizer": sgd(1e-3), "steps": 6, **options}
    run = mw.train(task, network, policy, algorithm, **options)
    return [record.values for record in run], vars(network.traffic).copy()


@pytest.mark.parametrize("name", runs())
def test_runs_that_share_parts_are_runs_with_fresh_ones(name):
    """Records and traffic, to the bit: nothing that one run has learned reaches the next."""
    algorithm, policy, graph, options = runs()[name]
    network = SimulatedNetwork(graph)
    for seed in (0, 1, 0):
        fresh = *runs()[name][:2], SimulatedNetwork(graph)
        assert records(seed, algorithm, policy, network, options) == records(seed, *fresh, options)
    assert (algorithm, policy) == runs()[name][:2]


def test_a_network_with_faults_can_be_used_again():
    network = FaultyNetwork(SimulatedNetwork(GRAPH), Faults(message_loss=0.3), seed=1)
    first, second = (records(0, DSGD(), pol.Fixed(MH), network, {}) for _ in range(2))
    assert first == second


def test_two_gossip_loops_with_the_same_parts_are_independent():
    shared = pol.HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum()

    def loop(policy, algorithm):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        gossip = mw.Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), mw.Graph(1, []), policy, algorithm)
        for _ in range(4):
            gossip.optimizer.zero_grad()
            model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
            gossip.step()
        return [parameter.tolist() for parameter in model.parameters()]

    fresh = loop(pol.HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum())
    assert [loop(*shared) for _ in range(2)] == [fresh, fresh]
