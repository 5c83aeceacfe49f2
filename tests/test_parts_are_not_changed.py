"""A run leaves the parts that it was given as they were: the next run with them is the same as one with fresh parts."""

import copy

import pytest
import torch
from torch import nn

import mixwise as mw
from every_algorithm import GRAPH, NODES, POLICIES, algorithm, optimizer
from mixwise.algorithms import D2, DSGD, Choco, DecoupledDSGD, QuasiGlobalMomentum, RelaySGD
from mixwise.errors import TrainingError
from mixwise.gossip.description import describe
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import LossyNetwork, SimulatedNetwork
from mixwise.parts import entries
from mixwise.policies import (
    Alternating,
    Cycle,
    Decoupled,
    EdgeSampling,
    Fixed,
    HeterogeneityAware,
    HeterogeneityAwareMatchings,
    HeterogeneityAwareTree,
    LearnedTopology,
    Matcha,
    Matchings,
    Observation,
    Product,
    RandomChoice,
    auto_policy,
)
from mixwise.tasks import random_quadratics
from mixwise.training import train

W = lazy(metropolis_hastings(GRAPH))


def smooth():
    return HeterogeneityAware(2, smoothing=0.5, growth=1.1, alternate_with=Matchings(GRAPH))


# name -> policy, algorithm
PARTS = {
    "smoothing": lambda: (smooth(), DSGD()),
    "local": lambda: (HeterogeneityAware(2, solver="local", smoothing=0.5), DSGD()),
    "made lazy": lambda: (HeterogeneityAware(2), D2()),
    "matchings made lazy": lambda: (HeterogeneityAwareMatchings(1), D2()),
    "learned topology": lambda: (LearnedTopology(2, looks=3), DSGD()),
    "product": lambda: (Product(smooth(), LearnedTopology(2, looks=3)), DSGD()),
    "alternating": lambda: (Alternating(LearnedTopology(2, looks=3), smooth()), DSGD()),
    "decoupled": lambda: (Decoupled(smooth(), smooth()), DecoupledDSGD()),
    "chosen tree": lambda: (HeterogeneityAwareTree(3), QuasiGlobalMomentum(inner=RelaySGD())),
    "quasi-global around d2": lambda: (Fixed(W), QuasiGlobalMomentum(inner=D2())),
    "choco": lambda: (Fixed(W), Choco()),
    "auto": lambda: (auto_policy(GRAPH), DSGD()),
    "matcha": lambda: (Matcha(GRAPH, 0.5), DSGD()),
    "edge sampling": lambda: (EdgeSampling(GRAPH, 0.5), DSGD()),
    "random choice": lambda: (RandomChoice([W, metropolis_hastings(GRAPH)]), DSGD()),
    "cycle": lambda: (Cycle([W, metropolis_hastings(GRAPH)]), DSGD()),
}
PARTS |= {
    f"algorithm: {kind}": lambda kind=kind: (
        POLICIES.get(kind, lambda: HeterogeneityAware(2, smoothing=0.3))(),
        algorithm(kind),
    )
    for kind in entries("algorithm")
}


def records(name, seed, parts, network):
    kind = name.removeprefix("algorithm: ")
    run = train(random_quadratics(NODES, seed=seed), network, *parts, lambda b: optimizer(kind, b), steps=6)
    return [record.values for record in run], vars(network.traffic).copy()


@pytest.mark.parametrize("name", PARTS)
def test_runs_with_the_same_parts_are_runs_with_fresh_ones(name):
    """Records and traffic, to the bit: nothing that one run has learned is there in the next."""
    parts, network = PARTS[name](), SimulatedNetwork(GRAPH)
    for seed in (0, 1, 0):
        assert records(name, seed, parts, network) == records(name, seed, PARTS[name](), SimulatedNetwork(GRAPH))


@pytest.mark.parametrize("name", PARTS)
def test_a_run_changes_nothing_in_its_parts(name):
    parts = PARTS[name]()
    before = describe("the parts", parts)
    records(name, 0, parts, SimulatedNetwork(GRAPH))
    assert describe("the parts", parts) == before


def test_a_network_with_losses_begins_again_too():
    network = LossyNetwork(GRAPH, 0.3, seed=1)
    first, second = (records("dsgd", 0, (Fixed(W), DSGD()), network) for _ in range(2))
    assert first == second


def test_gossip_begins_clean():
    """The same policy, algorithm and network in two loops with two models."""
    parts, network = (HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum()), SimulatedNetwork(mw.Graph(1, []))

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

    fresh = loop(HeterogeneityAware(smoothing=0.5), QuasiGlobalMomentum(), SimulatedNetwork(network.graph))
    assert [loop(*parts, network) for _ in range(2)] == [fresh, fresh]
    assert parts[1].state == {}


def test_a_policy_that_has_planned_by_hand_can_be_copied():
    """What it has laid out for its solvers, and the network that it knows, stay behind."""
    U = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0))
    for solver in ("piqp", "local"):
        policy = HeterogeneityAware(solver=solver)
        plan = policy.plan(0, Observation(U, U, U), SimulatedNetwork(GRAPH))
        twin = copy.deepcopy(policy)
        assert twin.W == policy.W == plan.params[0]
        assert twin.plan(1, Observation(U, U, U), SimulatedNetwork(GRAPH)).params[0].n == NODES


def test_graphs_and_matrices_are_not_copied():
    """They are immutable, and may be large."""
    assert copy.deepcopy(GRAPH) is GRAPH
    assert copy.deepcopy(Fixed(W)).W is W


def test_a_part_that_cannot_be_copied_is_refused():
    policy = Fixed(W)
    policy.log = (line for line in ())
    with pytest.raises(TrainingError, match=r"Fixed cannot be copied \(.*generator.*; give it a __deepcopy__"):
        records("dsgd", 0, (policy, DSGD()), SimulatedNetwork(GRAPH))
