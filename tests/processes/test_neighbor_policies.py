"""Policies that talk to neighbors only, on real processes: the plans of a simulation; no process knows all of one."""

import numpy as np
import pytest
import torch

from builders import simulated
from mixwise.algorithms import DSGD, GradientTracking
from mixwise.graphs import random_connected, ring, social_network
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.policies import AwarePairs, HeterogeneityAware
from mixwise.sketch import CountSketch
from mixwise.tasks import random_quadratics
from process_pool import in_processes, run_in_processes

pytestmark = in_processes


def local(**options):
    return HeterogeneityAware(2, solver="local", sketch=CountSketch(20), **options)


PAIRS = AwarePairs(2, CountSketch(20))
# Graph, algorithm, policy, and how far rows and weights may differ: a local solve sees rows that differ by rounding and
# stops at 1e-3.
CASES = {
    "pairs on a random graph": (random_connected(11, 0.3, seed=4), DSGD, PAIRS, 0),
    "pairs on a social network": (social_network(), DSGD, PAIRS, 0),
    "weights on a ring of 5": (ring(5), DSGD, local(), 1e-9),
    "weights on half of 16": (random_connected(16), DSGD, local(smoothing=0.5, objective="both"), 1e-9),
    "symmetric weights": (social_network(), GradientTracking, local(symmetric=True, regularization=0.02), 1e-9),
}


def steps(network, algorithm, policy):
    """X, the weights and a summary of the solve after each of 4 steps; and the bytes of sketches and offers."""
    task = random_quadratics(network.graph.n)
    training = simulated(policy, algorithm(), task=task, network=network, lr=0.003)
    seen = []
    for _ in range(4):
        plan = training.step().plan
        told = [(solve.status, solve.iterations) for solve in plan.solves]
        seen.append((training.X.clone(), plan.params, told))
    return seen, network.traffic.sketches


def on_processes(rank, world, case):
    graph, algorithm, policy, _ = CASES[case]
    network = DistributedNetwork(graph, timeout=60)
    return network.nodes, *steps(network, algorithm, policy)


@pytest.mark.numerics
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_plans_and_iterates_of_a_simulation(case, world):
    graph, algorithm, policy, off = CASES[case]
    expected, sent = steps(SimulatedNetwork(graph), algorithm, policy)
    for nodes, seen, counted in run_in_processes(world, on_processes, case):
        own = slice(nodes.start, nodes.stop)
        assert counted == sent
        for t, ((X, plan, told), (all_X, all_plan, all_told)) in enumerate(zip(seen, expected, strict=True)):
            torch.testing.assert_close(X, all_X[own], rtol=off, atol=off)
            assert told == all_told
            for W, all_W in zip(plan, all_plan, strict=True):
                assert not W.whole
                difference = np.abs(W.to_dense() - all_W.to_dense())
                assert max(difference[own].max(), difference[:, own].max()) <= (off if t else 0)
