"""Every algorithm that a recipe can name with a policy and an optimizer that fit it, on a small model."""

import torch

from mixwise.algorithms import Algorithm
from mixwise.data import gaussian_mixture, partition
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.graphs import ring, spanning_tree
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.models import mlp, seeded
from mixwise.network import SimulatedNetwork
from mixwise.policies import Decoupled, Fixed, HeterogeneityAware, NoMixing, Tree
from mixwise.tasks import ModuleTask
from mixwise.training import Training

NODES = 8
GRAPH = ring(NODES)


def weights():
    return Fixed(lazy(metropolis_hastings(GRAPH)))


POLICIES = {
    "decoupled": lambda: Decoupled(weights(), weights()),
    "relay": lambda: Tree(spanning_tree(GRAPH)),
    "choco": weights,
    "all-reduce": NoMixing,
    "local-sgd": NoMixing,
}


def algorithm(kind: str) -> Algorithm:
    base = load_recipe("quadratics")
    (config,) = plan_experiment(base, [f"algorithm={kind}", f"variants={next(iter(base.variants))}"]).runs.values()
    return config.part("algorithm")


def optimizer(kind: str, blocks):
    if kind == "dadam":
        return torch.optim.Adam(blocks, lr=1e-3)
    return torch.optim.SGD(blocks, lr=1e-3)


def start(kind: str, task, **options) -> Training:
    policy = POLICIES.get(kind, lambda: HeterogeneityAware(2))()
    return Training(
        task, SimulatedNetwork(GRAPH), policy, algorithm(kind), lambda blocks: optimizer(kind, blocks), **options
    )


def small_task(hidden: int, **options) -> ModuleTask:
    data = gaussian_mixture(classes=2, dim=30, samples=200).train
    parts = partition.iid(len(data), NODES, 0)
    module = lambda: seeded(lambda: mlp((30, hidden, 2)), 0)  # noqa: E731
    return ModuleTask(module, data, parts, batch=4, **{"gradients": "loop", **options})
