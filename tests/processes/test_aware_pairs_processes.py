"""Pairs agreed on by offers between real processes: those of a simulation, and no process knows all of them."""

import numpy as np
import pytest
import torch

from builders import simulated
from mixwise.graphs import random_connected, social_network
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.policies import AwarePairs
from mixwise.sketch import CountSketch
from mixwise.tasks import random_quadratics
from process_pool import in_processes, run_in_processes

pytestmark = in_processes

GRAPHS = {"random": random_connected(11, 0.3, seed=4), "social": social_network()}


def steps(network):
    """X and the plan after each of 4 steps; and the bytes of sketches and offers."""
    task = random_quadratics(network.graph.n)
    training = simulated(AwarePairs(2, CountSketch(20)), task=task, network=network, lr=0.003)
    seen = []
    for _ in range(4):
        plan = training.step().plan
        seen.append((training.X.clone(), plan.params))
    return seen, network.traffic.sketches


def on_processes(rank, world, graph):
    network = DistributedNetwork(GRAPHS[graph], timeout=60)
    return network.nodes, *steps(network)


@pytest.mark.numerics
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_processes_agree_on_the_pairs_of_a_simulation(graph, world):
    expected, sent = steps(SimulatedNetwork(GRAPHS[graph]))
    for nodes, seen, counted in run_in_processes(world, on_processes, graph):
        own = slice(nodes.start, nodes.stop)
        assert counted == sent
        for (X, plan), (all_X, all_plan) in zip(seen, expected, strict=True):
            torch.testing.assert_close(X, all_X[own], rtol=0, atol=0)
            for W, all_W in zip(plan, all_plan, strict=True):
                assert not W.whole
                np.testing.assert_array_equal(W.to_dense()[own], all_W.to_dense()[own])
                np.testing.assert_array_equal(W.to_dense()[:, own], all_W.to_dense()[:, own])
