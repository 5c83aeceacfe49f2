"""Lost messages: what arrives is mixed, what is lost is replaced as documented, and the draws are the step's own."""

import pytest
import torch

from builders import refused
from mixwise import algorithms, graphs
from mixwise.errors import MixingError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare
from mixwise.mixing import metropolis_hastings, uniform_sender
from mixwise.network.simulated import LossyNetwork, SimulatedNetwork
from mixwise.plan import Plan
from mixwise.state import State
from planning import mixed

TORUS = graphs.torus(4, 4)


def lost_arcs(network, graph):
    """The arcs that fail, seen from outside: node i sends a 1 in column i."""
    arrived = network.mix(torch.eye(graph.n, dtype=torch.float64), metropolis_hastings(graph)).numpy()
    return {(i, j) for i in range(graph.n) for j in graph.neighbors(i) if arrived[j, i] == 0}


def test_the_own_row_stands_in_for_a_lost_one():
    network, W = LossyNetwork(TORUS, 0.3, seed=1), metropolis_hastings(TORUS)
    lost = lost_arcs(network, TORUS)
    assert 5 < len(lost) < 40  # of 64
    X = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixed = network.mix(X, W)
    for j in range(16):
        expected = sum(W[i, j] * X[j if (i, j) in lost else i] for i in [j, *TORUS.neighbors(j)])
        torch.testing.assert_close(mixed[j], expected, rtol=1e-13, atol=0)


def test_a_step_has_its_own_losses_at_the_stated_rate():
    network = LossyNetwork(TORUS, 0.2, seed=0)
    drawn = []
    for network.step in range(100):
        drawn.append(lost_arcs(network, TORUS))
        assert lost_arcs(network, TORUS) == drawn[-1]
    assert len({frozenset(arcs) for arcs in drawn}) > 90
    share = sum(map(len, drawn)) / (100 * 64)
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / 6400) ** 0.5


def test_nothing_is_lost_at_rate_0_and_lost_messages_are_counted():
    X, W = torch.randn(16, 3), metropolis_hastings(TORUS)
    assert torch.equal(LossyNetwork(TORUS, 0.0).mix(X, W), SimulatedNetwork(TORUS).mix(X, W))
    network, whole = LossyNetwork(TORUS, 0.5), SimulatedNetwork(TORUS)
    network.mix(X, W)
    whole.mix(X, W)
    assert network.traffic == whole.traffic


def test_pushed_mass_is_gone_with_its_numerator():
    graph = graphs.directed_exponential(8)
    network, W = LossyNetwork(graph, 0.4, seed=2), uniform_sender(graph)
    ones = network.mix(torch.ones(8, 1, dtype=torch.float64), W)
    assert float(ones.sum()) < 8
    twice = network.mix(torch.full((8, 1), 2.0, dtype=torch.float64), W)
    torch.testing.assert_close(twice, 2 * ones)


def test_relayed_sums_and_counts_are_lost_together():
    """Equal rows stay equal: every node divides the sum that it has by the number of rows in it."""
    tree = graphs.chain(6)
    network = LossyNetwork(tree, 0.3, seed=3)
    X, state = torch.full((6, 2), 3.0), State()
    for network.step in range(12):
        found = mixed(algorithms.RelaySGD(), X, X, Plan((), tree=tree), network, state=state)
        torch.testing.assert_close(found, X)


def test_a_recipe_loses_messages_and_repeats_itself():
    def records(*changes):
        plan = plan_experiment(load_recipe("quadratics"), ["steps=20", "variants=dsgd-metropolis", *changes])
        return [record.values for record in prepare(plan.runs["dsgd-metropolis"], 0)()]

    assert records("message_loss=0.1") == records("message_loss=0.1") != records()


@pytest.mark.parametrize("loss", [-0.1, 1.0, float("nan")])
def test_a_rate_out_of_range_is_rejected(loss):
    refused(MixingError, "lies in", LossyNetwork, TORUS, loss)
