"""The neighbors' weights on real processes: the same bits as in a simulation, and no process knows the others'."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mixwise.algorithms import DSGD, CombineWhileAdapt, GradientTracking
from mixwise.graphs import random_connected, ring, social_network
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.policies import HeterogeneityAware
from mixwise.sketch import CountSketch
from mixwise.tasks import random_quadratics
from mixwise.training import Training, train
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint
from processes import in_processes, run_in_processes

pytestmark = in_processes

CASES = {
    "ring of 5": (ring(5), DSGD, {}),
    "half of 16": (random_connected(16), DSGD, {"smoothing": 0.5, "objective": "both"}),
    "symmetric": (social_network(), GradientTracking, {"symmetric": True, "regularization": 0.02}),
}


def parts(graph, algorithm, options, network):
    policy = HeterogeneityAware(2, solver="local", sketch=CountSketch(20), **options)
    return random_quadratics(graph.n), network, policy, algorithm(), lambda rows: torch.optim.SGD(rows, lr=0.003)


def steps(network, graph, algorithm, options):
    """X after each of 4 steps, and the weights and what is told of the solves."""
    training = Training(*parts(graph, algorithm, options, network))
    seen = []
    for _ in range(4):
        plan = training.step().plan
        told = None if plan.solve is None else (plan.solve.status, plan.solve.iterations, plan.solve.objective)
        seen.append((training.X.clone(), plan.params[0], told))
    return seen, vars(network.traffic).copy()


def on_processes(rank, world, case):
    graph, algorithm, options = CASES[case]
    network = DistributedNetwork(graph, timeout=20)
    return network.nodes, *steps(network, graph, algorithm, options)


@pytest.mark.numerics
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_and_iterates_as_in_a_simulation(case, world):
    graph, algorithm, options = CASES[case]
    expected, traffic = steps(SimulatedNetwork(graph), graph, algorithm, options)
    for nodes, seen, counted in run_in_processes(world, on_processes, case):
        own = slice(nodes.start, nodes.stop)
        for (X, W, told), (all_X, all_W, all_told) in zip(seen, expected, strict=True):
            # The first solve sees the same rows; later ones rows that differ by rounding, and a solve stops at 1e-3.
            torch.testing.assert_close(X, all_X[own], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(W.to_dense()[own], all_W.to_dense()[own], atol=1e-9)
            np.testing.assert_allclose(W.to_dense()[:, own], all_W.to_dense()[:, own], atol=1e-9)
            assert not W.whole
            assert (told is None) == (all_told is None)
            assert told is None or told[:2] == all_told[:2]
        np.testing.assert_array_equal(seen[0][1].to_dense()[own], expected[0][1].to_dense()[own])
        assert counted["sketches"] == traffic["sketches"]


def saved(rank, world, folder):
    training = Training(*parts(ring(7), DSGD, {"smoothing": 0.5}, DistributedNetwork(ring(7), timeout=20)))
    for _ in range(3):
        training.step()
    save_checkpoint(training, Path(folder))


def resumed(rank, world, folder):
    network = DistributedNetwork(ring(7), timeout=20)
    training = Training(*parts(ring(7), DSGD, {"smoothing": 0.5}, network))
    load_checkpoint(training, Path(folder))
    return network.nodes, [training.step() and training.X.clone() for _ in range(3)]


def test_a_checkpoint_may_be_read_by_other_numbers_of_processes(tmp_path):
    """Steps 3 to 5: the kept weights, a solve that begins where the last one ended, and what came of it."""
    alone = Training(*parts(ring(7), DSGD, {"smoothing": 0.5}, SimulatedNetwork(ring(7))))
    expected = [alone.step() and alone.X.clone() for _ in range(6)][3:]
    run_in_processes(3, saved, str(tmp_path))
    for nodes, found in run_in_processes(2, resumed, str(tmp_path)):
        for X, all_X in zip(found, expected, strict=True):
            torch.testing.assert_close(X, all_X[nodes.start : nodes.stop], rtol=1e-12, atol=1e-12)
    one = Training(*parts(ring(7), DSGD, {"smoothing": 0.5}, SimulatedNetwork(ring(7))))
    load_checkpoint(one, tmp_path)
    for X in expected:
        one.step()
        torch.testing.assert_close(one.X, X, rtol=1e-12, atol=1e-12)


def recorded(rank, world):
    graph = ring(6)
    network = DistributedNetwork(graph, timeout=20)
    return [record.values for record in train(*parts(graph, CombineWhileAdapt, {}, network), steps=3)]


def test_records_leave_out_what_nobody_knows():
    for values in run_in_processes(2, recorded):
        assert "consensus_factor" not in values[-1]
        assert values[-1]["gradient_mixing_error"] > 0
        assert values[0]["solve_status"] == "solved"
