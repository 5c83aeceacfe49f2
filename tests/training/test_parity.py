"""Several processes do what one does that simulates all nodes: the same sketches and weights, bit for bit, and the same
rows up to rounding, for every algorithm, however the nodes are divided over the processes.

Every process builds the parts of a run itself; only the network differs.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import mixwise.algorithms as alg
import mixwise.policies as pol
from builders import sgd
from every_algorithm import KNOWN_IN_PART, quadratic_run, runs
from mixwise.data import gaussian_mixture, partition
from mixwise.graphs import chain, ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import seeded
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.sketch import CountSketch
from mixwise.tasks import ModuleTask, random_quadratics
from mixwise.training import Training
from process_pool import in_processes, run_in_processes
from small_net import Tied

pytestmark = [in_processes, pytest.mark.numerics, pytest.mark.usefixtures("one_thread")]

STEPS = 10


def mlp():
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 0)


def batch_norm():
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), 0)


MODELS = {
    "mlp": (mlp, {}),
    "batch norm, local": (batch_norm, {"buffers": "local"}),
    "batch norm, averaged": (batch_norm, {"buffers": "averaged"}),
    "frozen, shared, dropout": (lambda: seeded(partial(Tied, 6, 3, dropout=0.3), 0), {}),
}


def module_task(n, model):
    data = gaussian_mixture(classes=3, dim=6, samples=120, seed=0)
    parts = partition.dirichlet(data.train.y, n, 0.5, seed=0)
    module, options = MODELS[model]
    return ModuleTask(module, data.train, parts, batch=8, gradients="loop", dtype=torch.float64, **options)


def module_run(n, model, name, make_network):
    algorithm, policy = runs()[name][:2]
    policy = pol.Fixed(metropolis_hastings(chain(n))) if name == "dsgd" else policy
    return Training(
        module_task(n, model), make_network(chain(n)), policy, algorithm, sgd(0.05, momentum=0.9, nesterov=True)
    )


def history(make, make_network):
    """What a run does: rows, weights and gathered sketches of every step, buffers and traffic at the end."""
    gathered = []

    def watched(graph):
        network = make_network(graph)
        gather = network.gather
        network.gather = lambda rows: gathered.append(gather(rows).clone()) or gathered[-1]
        return network

    training, X, weights = make(watched), [], []
    for _ in range(STEPS):
        plan = training.step().plan
        X.append(training.X.clone())
        weights.append([] if plan is None else [W.weights for W in plan.matrices])
        if plan is not None and plan.tree is not None:
            weights[-1].append(plan.tree.edge_array)
    buffers = getattr(training.task, "mixed_buffers", None)
    return {
        "X": torch.stack(X, dim=1),
        "models": training.models.clone(),
        "weights": weights,
        "gathered": gathered,
        "buffers": None if buffers is None else buffers.clone(),
        "traffic": training.network.traffic,
    }


def in_process(rank, world, runs):
    return [history(make, partial(DistributedNetwork, timeout=30)) for make in runs]


def compare(runs, world):
    results = run_in_processes(world, in_process, runs, timeout=100)
    for number, make in enumerate(runs):
        expected, parts = history(make, SimulatedNetwork), [result[number] for result in results]
        for part in parts:
            assert len(part["gathered"]) == len(expected["gathered"])
            # Bit for bit: rows are summed over neighbors in the same order, and a row's sketch knows only its row.
            assert all(map(torch.equal, part["gathered"], expected["gathered"])), make
            for found, wanted in zip(part["weights"], expected["weights"], strict=True):
                assert all(map(np.array_equal, found, wanted)), make
                assert len(found) == len(wanted)
            assert part["traffic"] == expected["traffic"]
        for name in ("X", "models", "buffers"):
            if expected[name] is not None:
                found, size = torch.cat([part[name] for part in parts]), float(expected[name].abs().max())
                torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-12 * size)
        assert float((expected["X"][:, -1] - expected["X"][:, 0]).abs().max()) > 1e-3


@pytest.mark.parametrize("world", [3, *(pytest.param(world, marks=pytest.mark.soak) for world in (2, 4))])
def test_every_algorithm_on_quadratics(world):
    compare([partial(quadratic_run, name) for name in runs() if name not in KNOWN_IN_PART], world)


@pytest.mark.parametrize("world", [2, 4])
def test_modules_with_buffers_frozen_and_shared_parameters(world):
    runs = [partial(module_run, 5, model, "ha-dsgd") for model in MODELS]
    runs += [partial(module_run, 4, "batch norm, averaged", name) for name in ("dsgd", "combine-while-adapt")]
    runs += [partial(module_run, 5, "mlp", "gradient tracking, aware")]
    compare(runs, world)


def controlled_run(control, make_network):
    policy = pol.HeterogeneityAware(2, control=control)
    return Training(module_task(5, "mlp"), make_network(chain(5)), policy, "dsgd", sgd(0.05))


def test_controls_are_drawn_and_predicted_alike_on_every_process():
    compare([partial(controlled_run, control) for control in ("permuted", "predicted-drift")], 2)


def single(algorithm, make_network):
    policy = pol.NoMixing() if algorithm.needs.plan == "nothing" else pol.Fixed(metropolis_hastings(chain(1)))
    return Training(random_quadratics(1, dim=3), make_network(chain(1)), policy, algorithm, sgd())


def test_one_node_in_one_process():
    kinds = alg.DSGD(), alg.CombineWhileAdapt(), alg.GradientTracking(), alg.LocalSGD()
    compare([partial(single, algorithm) for algorithm in kinds], 1)


def test_more_nodes_than_the_simulation_multiplies_densely():
    """Above 64 nodes a simulation takes sparse products."""
    compare([many], 3)


def many(make_network):
    graph = ring(70)
    policy = pol.HeterogeneityAware(period=4, sketch=CountSketch(20, seed=0))
    return Training(random_quadratics(70, dim=4), make_network(graph), policy, alg.DSGD(), sgd())
