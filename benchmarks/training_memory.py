"""How many (m, d) tensors a run holds at its peak: `python -m benchmarks.training_memory fixed`, or `aware`.

It runs in a process of its own, and every large tensor is given back to the system when it is freed
(MALLOC_MMAP_THRESHOLD_), so that the resident memory is what is in use, not what the allocator keeps.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

NODES, BATCH, STEPS = 16, 8, 4
SIZES = (784, 1800, 2000, 10)  # d = 5,035,010
POLICIES = ("fixed", "aware")


def measured(policy: str) -> dict[str, float] | None:
    """The peak of a few steps, in tensors (m, d), and what it consists of; None where /proc does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_memory", policy],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "500000", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main(policy: str) -> None:
    from torch import nn, optim

    from benchmarks.training import random_data
    from mixwise.algorithms import DSGD
    from mixwise.data import Dataset, partition
    from mixwise.graphs import ring
    from mixwise.mixing import metropolis_hastings
    from mixwise.models import mlp, seeded
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import Fixed, HeterogeneityAware
    from mixwise.tasks import ModuleTask
    from mixwise.training import Training

    data: Dataset = random_data(784)

    def training(sizes: tuple[int, ...]) -> Training:
        parts = partition.iid(len(data), NODES, 0)
        task = ModuleTask(lambda: seeded(lambda: mlp(sizes), 0), data, parts, batch=BATCH, gradients="loop")
        weights = HeterogeneityAware(2) if policy == "aware" else Fixed(metropolis_hastings(ring(NODES)))
        return Training(
            task, SimulatedNetwork(ring(NODES)), weights, DSGD(), lambda p: optim.SGD(p, lr=0.01, momentum=0.9)
        )

    small = training((784, 4, 10))
    for _ in range(STEPS):  # whatever is loaded on first use
        small.step()
    del small
    gc.collect()

    # One node alone, in plain PyTorch: what a pass holds besides the parameters, activations and gradients.
    module = mlp(SIZES)
    reset_peak()
    before = _memory("VmRSS")
    nn.functional.cross_entropy(module(data.x[:BATCH]), data.y[:BATCH]).backward()
    one_pass = _memory("VmHWM") - before
    del module
    gc.collect()

    before = _memory("VmRSS")
    reset_peak()
    run = training(SIZES)
    unit = run.X.numel() * run.X.element_size()
    solves = sum(run.step().plan.solve is not None for _ in range(STEPS))
    peak = (_memory("VmHWM") - before) / unit
    optimizer = sum(v.numel() for entries in run.optimizer.state.values() for v in entries.values()) / run.X.numel()
    result = {
        "peak": peak, "optimizer": optimizer, "pass_of_one_node": one_pass / unit,
        "left": peak - optimizer - one_pass / unit, "d": run.task.layout.dim, "solves": solves,
    }  # fmt: skip
    print(json.dumps(result))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1])
