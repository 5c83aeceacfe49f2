"""Memory at the peak, each case in a process of its own; Linux only."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import Benchmark, Contestant, Contestants, in_a_process, last_line, linux_only, memory

# 16 nodes × 20,008,000 parameters, as `mixwise run` starts it.
RECIPE = {
    "name": "memory", "seeds": [0], "metrics": ["loss"], "variants": {"ha": {}},
    "base": {
        "graph": "ring:16", "steps": 3, "evaluate_every": 2,
        "task": {
            "kind": "classification", "partition": {"kind": "iid"}, "batch": 32, "gradients": "loop",
            "data": {"kind": "gaussian-mixture", "options": {"dim": 1000, "samples": 4000}},
            "model": {"kind": "mlp", "options": {"sizes": [1000, 4000, 3990, 10]}},
        },
        "optimizer": {"kind": "adam", "lr": 1e-4}, "policy": {"kind": "heterogeneity-aware"},
    },
}  # fmt: skip


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    if not tiny:  # less than 1 GB is not announced
        yield Benchmark(
            "A run of 16 nodes × 20 million, Adam, HA-DSGD: how far is the peak from the announcement?",
            partial(in_processes, {"|taken / announced − 1|": ("run",)}), 10.0, better="lower", rounds=1, unit="%",
        )  # fmt: skip
    for policy in ("fixed", "aware"):
        yield Benchmark(
            f"D-SGD, {policy} weights: how many (m, d) tensors, besides the optimizer's and one node's pass?",
            partial(in_processes, {"mixwise": ("training", policy, "16" if tiny else "2000")}), 3.0, better="lower",
            rounds=1, unit="tensors",
        )  # fmt: skip
    for name, k, d in (("CountSketch", 1000, 11), ("GaussianSketch", 100, 2)):
        yield Benchmark(
            f"{name}, d = {d} million, k = {k}: how much memory beside the row?",
            partial(in_processes, {"mixwise": ("sketch", name, str(k), str(d * (1000 if tiny else 10**6)))}), 64.0,
            better="lower", rounds=1, unit="MB",
        )  # fmt: skip


def in_processes(cases: dict[str, tuple[str, ...]], module: str = "memory") -> Contestants:
    """Each case in a process that does nothing else."""

    def call(words: tuple[str, ...]) -> float:
        # Tensors that are freed go back to the system at once: resident memory is what is in use.
        options = {"MALLOC_MMAP_THRESHOLD_": "500000"} if words[0] == "training" else {}
        return float(last_line(in_a_process(module, *words, **options)))

    return {name: linux_only(Contestant(lambda _, words=words: call(words))) for name, words in cases.items()}


# --- in the processes ---
def run(*overrides: str) -> float:
    """Percent between the announced and the real peak of a run, from a recipe to its folder; both are printed."""
    from mixwise.experiments import plan_experiment, run_experiment
    from mixwise.experiments.build import prepare
    from mixwise.experiments.config import Recipe

    experiment = plan_experiment(Recipe.model_validate(RECIPE), overrides)
    need = prepare(next(iter(experiment.runs.values())), seed=experiment.recipe.seeds[0]).need
    assert need is not None  # a large run
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(experiment, Path(folder) / "run")
    print(json.dumps({"taken": memory("VmHWM"), "announced": need.total}))
    return 100 * abs(memory("VmHWM") / need.total - 1)


def training(policy: str, width: str) -> float:
    """The peak of a few steps in tensors (m, d), less the optimizer's and one node's pass in plain PyTorch."""
    import torch

    from mixwise.data import partition
    from mixwise.graphs import ring
    from mixwise.mixing import metropolis_hastings
    from mixwise.models import mlp, seeded
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import Fixed, HeterogeneityAware
    from mixwise.tasks import ModuleTask
    from mixwise.training import Training

    from .training import random_data

    nodes, batch, data = 16, 8, random_data(16, 784)

    def trained(width: int) -> Training:
        parts = partition.iid(len(data), nodes, 0)
        sizes = (784, width, width, 10)
        task = ModuleTask(lambda: seeded(lambda: mlp(sizes), 0), data, parts, batch=batch, gradients="loop")
        weights = HeterogeneityAware(2) if policy == "aware" else Fixed(metropolis_hastings)
        run = Training(
            task, SimulatedNetwork(ring(nodes)), weights, None, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)
        )
        for _ in range(4):
            run.step()
        return run

    trained(4)  # whatever is loaded on first use
    module = mlp((784, int(width), int(width), 10))
    before = _reset()
    torch.nn.functional.cross_entropy(module(data.x[:batch]), data.y[:batch]).backward()
    one_pass = memory("VmHWM") - before
    del module
    before = _reset()
    X = trained(int(width)).X
    return (memory("VmHWM") - before - one_pass) / (X.numel() * X.element_size()) - 1  # the momentum


def sketch(name: str, k: str, d: str) -> float:
    """MB that one call adds to the row that it is given."""
    import numpy as np

    import mixwise.sketch

    operator = getattr(mixwise.sketch, name)(int(k))
    operator(np.ones((1, 10), dtype=np.float32))
    row = np.ones((1, int(d)), dtype=np.float32)
    before = _reset()
    operator(row)
    return (memory("VmHWM") - before) / 1e6


def _reset() -> int:
    """Forget the peak; bytes that are held now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


if __name__ == "__main__":
    print({"run": run, "training": training, "sketch": sketch}[sys.argv[1]](*sys.argv[2:]))
