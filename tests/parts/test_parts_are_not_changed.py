"""Algorithms and policies are frozen values, so that runs can share them: each is as if its parts were new."""

from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from torch import nn

import mixwise as mw
import mixwise.policies as pol
from every_algorithm import GRAPH, NODES, POLICIES, algorithm, optimizer
from mixwise.algorithms import D2, DSGD, Choco, DecoupledDSGD, QuasiGlobalMomentum
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import LossyNetwork, SimulatedNetwork
from mixwise.parts import entries
from mixwise.tasks import random_quadratics


def smooth():
    return pol.HeterogeneityAware(2, smoothing=0.5, growth=1.1, alternate_with=pol.Matchings())


def learned():
    return pol.LearnedTopology(2, "updates", observe=3)


def fixed():
    return pol.Fixed(lazy(metropolis_hastings(GRAPH)))


# name -> policy, algorithm
PARTS = {
    "smoothing": lambda: (smooth(), DSGD()),
    "local": lambda: (pol.HeterogeneityAware(2, solver="local", smoothing=0.5), DSGD()),
    "made lazy": lambda: (pol.HeterogeneityAware(2), D2()),
    "matchings made lazy": lambda: (pol.HeterogeneityAwareMatchings(1), D2()),
    "learned topology": lambda: (learned(), DSGD()),
    "product": lambda: (pol.Product([smooth(), learned()]), DSGD()),
    "alternating": lambda: (pol.Alternating([learned(), smooth()]), DSGD()),
    "decoupled": lambda: (pol.Decoupled(smooth(), smooth()), DecoupledDSGD()),
    "quasi-global around d2": lambda: (fixed(), QuasiGlobalMomentum(inner=D2())),
    "choco": lambda: (fixed(), Choco()),
    "auto": lambda: (pol.Auto(), DSGD()),
    "matcha": lambda: (pol.Matcha(0.5), DSGD()),
    "edge sampling": lambda: (pol.EdgeSampling(0.5), DSGD()),
    "random choice": lambda: (pol.RandomChoice([fixed(), metropolis_hastings(GRAPH)]), DSGD()),
    "cycle": lambda: (pol.Cycle([lazy(metropolis_hastings(GRAPH)), metropolis_hastings(GRAPH)]), DSGD()),
}
PARTS |= {
    f"algorithm: {kind}": lambda kind=kind: (
        POLICIES.get(kind, lambda: pol.HeterogeneityAware(2, smoothing=0.3))(),
        algorithm(kind),
    )
    for kind in entries("algorithm")
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_frozen_equal_and_hashable(name):
    parts = PARTS[name]()
    assert parts == PARTS[name]()
    assert hash(parts) == hash(PARTS[name]())
    for part in parts:
        for name in ("anything", *(field.name for field in fields(part))):
            with pytest.raises(FrozenInstanceError):
                setattr(part, name, 1)


def records(name, seed, parts, network):
    kind = name.removeprefix("algorithm: ")
    task = random_quadratics(NODES, seed=seed)
    run = mw.train(task, network, *parts, optimizer=lambda rows: optimizer(kind, rows), steps=6)
    return [record.values for record in run], vars(network.traffic).copy()


@pytest.mark.parametrize("name", PARTS)
def test_runs_that_share_parts_are_runs_with_fresh_ones(name):
    """Records and traffic, to the bit: nothing that one run has learned is there in the next."""
    parts, network = PARTS[name](), SimulatedNetwork(GRAPH)
    for seed in (0, 1, 0):
        assert records(name, seed, parts, network) == records(name, seed, PARTS[name](), SimulatedNetwork(GRAPH))
    assert parts == PARTS[name]()


def test_a_lossy_network_can_be_used_again():
    network = LossyNetwork(GRAPH, 0.3, seed=1)
    first, second = (records("dsgd", 0, (fixed(), DSGD()), network) for _ in range(2))
    assert first == second


def test_two_gossip_loops_with_the_same_parts_are_independent():
    parts, network = (pol.HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum()), SimulatedNetwork(mw.Graph(1, []))

    def loop(policy, algorithm, network):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        gossip = mw.Gossip(
            model, torch.optim.SGD(model.parameters(), lr=0.1), network.graph, policy, algorithm, network=network
        )
        for _ in range(4):
            gossip.optimizer.zero_grad()
            model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
            gossip.step()
        return [parameter.tolist() for parameter in model.parameters()], vars(network.traffic).copy()

    fresh = loop(pol.HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum(), SimulatedNetwork(network.graph))
    assert [loop(*parts, network) for _ in range(2)] == [fresh, fresh]
