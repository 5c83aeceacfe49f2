"""Steps of D-SGD in one process: the naive loop over nodes in PyTorch, and one backward pass per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import nn

from mixwise.algorithms import DSGD
from mixwise.data import Dataset, partition
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import mlp, resnet20, seeded
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware
from mixwise.protocols import Policy
from mixwise.tasks import ModuleTask
from mixwise.training import Training

from .measure import Benchmark, Contestant, Contestants

BATCH = 32
Make = Callable[[], nn.Module]


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    nodes = 3 if tiny else 16
    yield Benchmark(
        "A step of 16 nodes on a ring, MLP 784-128-10: how much faster than the naive loop?",
        partial(mlp_steps, nodes), 2.8, "naive loop", limit="stacked passes only", rounds=15,
    )  # fmt: skip
    make, shape = (mlp, (784,)) if tiny else (resnet20, (3, 32, 32))
    yield Benchmark(
        "A step of 16 nodes, ResNet-20: what does it cost beside its forward and backward passes?",
        partial(step_and_passes, nodes, make, shape), 1.15, "forward and backward only", "lower",
        limit="forward and backward only", rounds=5,
    )  # fmt: skip
    yield Benchmark(
        "The same with a new W at every step (HA, k = 100): what does W cost beside fixed weights?",
        partial(new_weights, nodes, make, shape), 1.1, "fixed weights", "lower", limit="fixed weights", rounds=9,
    )  # fmt: skip


def mlp_steps(nodes: int) -> Contestants:
    data = random_data(nodes, 784)
    return {
        "mixwise": training(nodes, mlp, data, "stacked", None),
        "mixwise, gradients=loop": training(nodes, mlp, data, "loop", None),
        "naive loop": naive_loop(nodes, mlp, data),
        "stacked passes only": stacked_passes(nodes, mlp, data),
        "forward and backward only": passes(nodes, mlp, data),
    }


def step_and_passes(nodes: int, make: Make, shape: tuple[int, ...]) -> Contestants:
    data = random_data(nodes, *shape)
    return {
        "mixwise": training(nodes, make, data, "loop", None),
        "naive loop": naive_loop(nodes, make, data),
        "forward and backward only": passes(nodes, make, data),
    }


def new_weights(nodes: int, make: Make, shape: tuple[int, ...]) -> Contestants:
    data = random_data(nodes, *shape)
    return {
        "a new W at every step": training(nodes, make, data, "loop", HeterogeneityAware()),
        "fixed weights": training(nodes, make, data, "loop", None),
    }


# --- contestants ---
def training(
    nodes: int, make: Make, data: Dataset, gradients: Literal["stacked", "loop"], policy: Policy | None
) -> Contestant:
    """A step of ours, with Metropolis-Hastings weights if there is no policy."""
    parts = partition.iid(len(data), nodes, 0)
    task = ModuleTask(lambda: seeded(make, 0), data, parts, batch=BATCH, gradients=gradients)
    network = SimulatedNetwork(ring(nodes))
    run = Training(task, network, policy or Fixed(metropolis_hastings), DSGD(), sgd)
    return Contestant(lambda _: run.step())


def naive_loop(nodes: int, make: Make, data: Dataset) -> Contestant:
    """One module and one optimizer per node, and out-of-place averages of three parameters each."""
    modules = [seeded(make, 0) for _ in range(nodes)]
    optimizers = [sgd(module.parameters()) for module in modules]
    batches = list(zip(data.x.split(BATCH), data.y.split(BATCH), strict=True))

    def step(i: int) -> None:
        for node, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            x, y = batches[(i * nodes + node) % len(batches)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            rows = [list(module.parameters()) for module in modules]
            mixed = [
                [(a + b + c) / 3 for a, b, c in zip(rows[i - 1], rows[i], rows[(i + 1) % nodes], strict=True)]
                for i in range(nodes)
            ]
            for row, new in zip(rows, mixed, strict=True):
                for parameter, value in zip(row, new, strict=True):
                    parameter.copy_(value)

    return Contestant(step)


def stacked_passes(nodes: int, make: Make, data: Dataset) -> Contestant:
    """The passes of our own step, and nothing else."""
    task = ModuleTask(
        lambda: seeded(make, 0), data, partition.iid(len(data), nodes, 0), batch=BATCH, gradients="stacked"
    )
    X = task.initial(range(nodes))
    return Contestant(lambda i: task.losses_and_gradients(X, range(nodes), i))


def passes(nodes: int, make: Make, data: Dataset) -> Contestant:
    """One forward and backward pass per node, and nothing else."""
    module, x, y = seeded(make, 0), data.x[:BATCH], data.y[:BATCH]

    def call(_: int) -> None:
        for _node in range(nodes):
            module.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(module(x), y).backward()

    return Contestant(call)


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


def random_data(nodes: int, *shape: int) -> Dataset:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(nodes * BATCH * 4, *shape, generator=stream)
    return Dataset(x, torch.randint(10, (len(x),), generator=stream), 10, "random")
