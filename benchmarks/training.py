"""Training 16 nodes on a ring, one thread: a step of ours against the loop that everybody writes first."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks import training_memory
from benchmarks.measure import Measurement, fastest, in_turns, in_words, medians, speedup
from mixwise.algorithms import DSGD
from mixwise.data import Dataset, partition
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import mlp, resnet20, seeded
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware
from mixwise.sketch import CountSketch
from mixwise.tasks import ModuleTask
from mixwise.training import Training

NODES, BATCH = 16, 32


class NaiveLoop:
    """16 modules, 16 optimizers, and out-of-place averages of three parameters each."""

    def __init__(self, make, data: Dataset) -> None:
        self.modules = [seeded(make, 0) for _ in range(NODES)]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True) for m in self.modules]
        self.data = data
        self.t = 0

    def step(self) -> None:
        for node, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            start = (self.t * NODES + node) * BATCH % (len(self.data) - BATCH)
            x, y = self.data.x[start : start + BATCH], self.data.y[start : start + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            rows = [list(module.parameters()) for module in self.modules]
            mixed = [
                [(a + b + c) / 3 for a, b, c in zip(rows[i - 1], rows[i], rows[(i + 1) % NODES], strict=True)]
                for i in range(NODES)
            ]
            for row, new in zip(rows, mixed, strict=True):
                for parameter, value in zip(row, new, strict=True):
                    parameter.copy_(value)
        self.t += 1


def ours(make, data: Dataset, gradients, policy) -> Training:
    task = ModuleTask(
        lambda: seeded(make, 0), data, partition.iid(len(data), NODES, 0), batch=BATCH, gradients=gradients
    )
    network = SimulatedNetwork(ring(NODES))
    return Training(task, network, policy, DSGD(), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True))


def backward_only(make, data: Dataset):
    """One forward and backward pass per node, and nothing else."""
    module = seeded(make, 0)
    x, y = data.x[:BATCH], data.y[:BATCH]

    def call(_: object) -> None:
        for _node in range(NODES):
            module.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(module(x), y).backward()

    return call


def random_data(*shape: int) -> Dataset:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(NODES * BATCH * 4, *shape, generator=stream)
    return Dataset(x, torch.randint(10, (len(x),), generator=stream), 10, "random")


def measurements() -> list[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_mlp(), *_resnet20(), *map(_memory, training_memory.POLICIES)]
    finally:
        torch.set_num_threads(threads)


def _mlp() -> Measurement:
    data, fixed = random_data(784), Fixed(metropolis_hastings(ring(NODES)))
    naive = NaiveLoop(mlp, data)
    runs = {gradients: ours(mlp, data, gradients, fixed) for gradients in ("stacked", "loop")}
    contenders = {
        "naive": (lambda _: naive.step(), 10),
        "stacked": (lambda _: runs["stacked"].step(), 10),
        "loop": (lambda _: runs["loop"].step(), 10),
    }
    in_turns([[0] * 3], contenders)  # warm up
    seconds = in_turns([[0] * 10] * 7, contenders)
    times = medians(seconds)
    ratio = speedup(seconds["naive"], seconds["stacked"])
    return Measurement(
        "step of 16 nodes, MLP 784-128-10, against the naive loop", ratio, "×", 1.5, "higher",
        in_words(times["stacked"]), in_words(times["naive"]),
        {"medians": times, "fastest": {name: fastest(turns) for name, turns in seconds.items()}},
    )  # fmt: skip


def _resnet20() -> list[Measurement]:
    data = random_data(3, 32, 32)
    aware = ours(resnet20, data, "loop", HeterogeneityAware(100, sketch=CountSketch(100)))
    contenders = {
        "round": (lambda _: aware.step(), 1),
        "backward": (backward_only(resnet20, data), 1),
    }
    in_turns([[0]], contenders)
    seconds = in_turns([[0]] * 5, contenders)
    ratio = 1 / speedup(seconds["backward"], seconds["round"])
    times = medians(seconds)
    # What an optimization costs, spread over the H = 100 steps that use it.
    plans = []
    for _ in range(3):
        aware.policy.period = 1  # optimize at every step
        plans.append(aware.step().seconds["plan"])
    share = sorted(plans)[1] / 100 / times["round"]
    return [
        Measurement(
            "round of 16 × 32, ResNet-20, against backward passes alone", ratio, "×", 1.15, "lower",
            in_words(times["round"]), in_words(times["backward"]), {"medians": times},
        ),
        Measurement(
            "sketch, gather and solve, H = 100, k = 100, share of a step", 100 * share, "%", 3, "lower",
            in_words(sorted(plans)[1] / 100), in_words(times["round"]), {"plan_seconds": plans},
        ),
    ]  # fmt: skip


def _memory(policy: str) -> Measurement:
    found = training_memory.measured(policy)
    words = {"fixed": "fixed weights", "aware": "optimized weights"}[policy]
    return Measurement(
        f"(m, d) tensors at the peak, D-SGD, {words}, besides the optimizer's and a pass of one node",
        found and found["left"], "", 3, "lower", f"{found['peak']:.2f} in all" if found else "", "", found or {},
    )  # fmt: skip
