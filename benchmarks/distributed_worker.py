"""One of the processes of benchmarks/distributed.py: `python -m benchmarks.distributed_worker MODEL ROUNDS FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import mixwise as mw
from mixwise.mixing import metropolis_hastings, uniform
from mixwise.models import mlp, resnet20, seeded
from mixwise.policies import Cycle, Fixed

try:
    import decent_dp.ddp as decent
except ImportError:
    decent = None

BATCH = 32
STEPS = {"mlp": 40, "resnet20": 4}  # of one turn


class Contender:
    """A way to train: a step, bytes that one step moves per process, and an end of the turn."""

    def __init__(self, step: Callable[[], None], moved: float, settle: Callable[[], None] = lambda: None) -> None:
        self.step, self.moved, self.settle = step, moved, settle


def make_model(name: str) -> nn.Module:
    return seeded(lambda: mlp([784, 128, 10]) if name == "mlp" else resnet20(), 0)


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


def contenders(name: str, rank: int, world: int) -> dict[str, Contender]:
    stream = torch.Generator().manual_seed(rank)
    shape = (784,) if name == "mlp" else (3, 32, 32)
    x, y = torch.randn(BATCH, *shape, generator=stream), torch.randint(10, (BATCH,), generator=stream)
    size = 4 * sum(p.numel() for p in make_model(name).parameters())

    def gossip(graph, policy, **options) -> Contender:
        model = make_model(name)
        optimizer = make_optimizer(model.parameters())
        wrapped = mw.Gossip(model, optimizer, graph, policy, **options)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            wrapped.step()

        before = wrapped.network.sent
        for _ in range(2):
            step()
        return Contender(step, (wrapped.network.sent - before) / 2)

    def ddp() -> Contender:
        model = nn.parallel.DistributedDataParallel(make_model(name))
        optimizer = make_optimizer(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return Contender(step, 2 * (world - 1) / world * size)

    def theirs(topology: str) -> Contender:
        model = decent.DecentralizedDataParallel(
            make_model(name), lambda named: make_optimizer([p for _, p in named]), topology=topology
        )
        model.train()

        def step() -> None:
            nn.functional.cross_entropy(model(x), y).backward()

        def settle() -> None:
            for work in model._comm_ops:
                if work is not None:
                    work.wait()

        return Contender(step, size if topology == "ring" else 2 * (world - 1) / world * size, settle)

    ring, complete = mw.graphs.ring(world), mw.graphs.complete(world)
    pairs = Cycle([metropolis_hastings(matching) for matching in mw.graphs.matching_decomposition(ring)])
    found = {
        "local": Contender(local_step(name, x, y), 0.0),
        "ddp": ddp(),
        "ring": gossip(ring, Fixed(metropolis_hastings(ring))),
        "ring overlapped": gossip(ring, Fixed(metropolis_hastings(ring)), overlap=True),
        "pairs": gossip(ring, pairs, overlap=True),
        "complete": gossip(complete, Fixed(uniform(complete)), overlap=True),
    }
    if decent is not None:
        found |= {"decent pairs": theirs("ring"), "decent complete": theirs("complete")}
    return found


def local_step(name: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Without any communication, for comparison."""
    model = make_model(name)
    optimizer = make_optimizer(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def main(name: str, rounds: int, folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    else:
        store = dist.FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    everyone = contenders(name, rank, world)
    seconds: dict[str, list[float]] = {key: [] for key in everyone}
    for turn in range(rounds + 1):
        for key, contender in everyone.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS[name]):
                contender.step()
            contender.settle()
            dist.barrier()
            if turn > 0:  # the first one warms up
                seconds[key].append((time.perf_counter() - start) / STEPS[name])
    if rank == 0:
        moved = {key: contender.moved for key, contender in everyone.items()}
        (folder / "result.json").write_text(json.dumps({"seconds": seconds, "bytes": moved}), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
