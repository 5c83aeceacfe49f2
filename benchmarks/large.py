"""Many nodes in one process: is a step cheap beside its gradients, and is the cost of a node the same for more of them?

Logistic regression on digits, 650 parameters, batches of 16, on a torus. All times are CPU seconds of one thread, so
that others on the machine count little; contenders take turns on the same inputs.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import torch

import mixwise as mw
from benchmarks.measure import Measurement, in_words
from mixwise.data.streams import streams
from mixwise.graphs import Graph, torus
from mixwise.network import SimulatedNetwork
from mixwise.policies import AwarePairs, EdgeColoring, Fixed, HeterogeneityAware, Pairs
from mixwise.protocols import Algorithm, Context, Policy, Round
from mixwise.tasks import ModuleTask
from mixwise.training import Training

BATCH, REPEATS = 16, 3
METROPOLIS = Fixed(mw.mixing.metropolis_hastings)


def measurements() -> Iterator[Measurement]:
    """The overhead of a step at 99,856 nodes, growth from 10,240 to 102,400 nodes, and memory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from overhead(316, 316)
        yield from growth()
        yield local_solver()
    finally:
        torch.set_num_threads(threads)
    yield memory("316 × 316 torus, D-SGD with aware pairs", 6.0, "step")
    yield memory("ring of 1,000,000 nodes with 10 numbers each, aware pairs", 4.0, "million")


def overhead(rows: int, cols: int) -> Iterator[Measurement]:
    """A step over its gradients and one copy of the rows."""
    graph = torus(rows, cols)
    for name, policy, bar in (
        ("Metropolis-Hastings", METROPOLIS, 3.0),
        ("pairs (auto)", Pairs(), 6.0),
        ("aware pairs", AwarePairs(), 6.0),
    ):
        training = started(graph, policy)
        other = torch.empty_like(training.X)
        seconds = in_turns(
            {
                "step": training.step,
                "gradients": lambda run=training: gradients(run),
                "copy": lambda run=training, to=other: to.copy_(run.X),
            }
        )
        least = seconds["gradients"] + seconds["copy"]
        yield Measurement(
            f"a step of D-SGD with {name}, {graph.n:,} nodes", seconds["step"] / least, "×", bar, "lower",
            in_words(seconds["step"]), f"{in_words(least)} (gradients and one copy of the rows)", seconds,
        )  # fmt: skip
        del training, other
        gc.collect()


def growth() -> Iterator[Measurement]:
    """The time per node and step with ten times as many nodes."""
    small, large = torus(80, 128), torus(320, 320)
    for name, policy in (
        ("Metropolis-Hastings", METROPOLIS),
        ("edge coloring", EdgeColoring()),
        ("aware pairs", AwarePairs()),
    ):
        few, many = started(small, policy), started(large, policy)
        copies = torch.empty_like(few.X), torch.empty_like(many.X)
        seconds = in_turns(
            {
                "few": few.step,
                "many": many.step,
                "copy few": lambda run=few, to=copies[0]: to.copy_(run.X),
                "copy many": lambda run=many, to=copies[1]: to.copy_(run.X),
            }
        )
        copy = seconds["copy many"] / seconds["copy few"] / (large.n / small.n)
        yield _growth(
            f"a step with {name}", seconds["many"], seconds["few"], small, large, 1.5, {**seconds, "copy": copy}
        )
        del few, many, copies
        gc.collect()


def local_solver() -> Measurement:
    """The same for CE-GME without a center, to the same tolerance."""
    small, large = torus(80, 128), torus(320, 320)

    def plan(graph: Graph) -> Callable[[], object]:
        policy, network = HeterogeneityAware(solver="local", tolerance=0.1), SimulatedNetwork(graph)
        X = torch.randn(graph.n, 64, generator=torch.Generator().manual_seed(0))
        round_ = Round(0, X, X, torch.zeros_like(X), algorithm=Algorithm())
        return lambda: policy.plan(round_, policy.init(Context(graph)), network)

    seconds = in_turns({"few": plan(small), "many": plan(large)}, repeats=2)
    return _growth("weights by the local solver", seconds["many"], seconds["few"], small, large, 2.0, seconds)


def memory(what: str, bar: float, case: str) -> Measurement:
    """The peak memory of a process that does nothing else."""
    code = f"from benchmarks.large import {case}; {case}()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak = float(result.stdout.split()[-1])
    return Measurement(f"memory: {what}", peak, "GB", bar, "lower", f"{peak:.2f} GB")


# --- what is measured ---
def started(graph: Graph, policy: Policy) -> Training:
    """A run after its first step, with pairs planned as far ahead as they ever are: steps cost what later ones cost."""
    data = mw.data.digits()
    task = ModuleTask(
        lambda: mw.models.logistic_regression(64, 10), data.train, streams(data.train.y, graph.n), batch=BATCH
    )
    training = Training(task, SimulatedNetwork(graph), policy, None, lambda rows: torch.optim.SGD(rows, lr=0.1))
    if isinstance(policy, Pairs):
        training.driver.policy_state.scratch["schedule"].rounds_of(10**6)
    training.step()
    return training


def gradients(training: Training) -> None:
    """The stacked forward and backward passes of all nodes."""
    with torch.enable_grad():
        training.task.losses_and_gradients(training.X, training.network.nodes, training.t)


def step() -> None:
    """Two steps with aware pairs, and the peak memory in GB."""
    torch.set_num_threads(1)
    training = started(torus(316, 316), AwarePairs())
    training.step()
    print(_peak())


def million() -> None:
    """One mixing of a million nodes, and the peak memory in GB."""
    torch.set_num_threads(1)
    graph = mw.graphs.ring(1_000_000)
    X, network, policy = torch.randn(graph.n, 10), SimulatedNetwork(graph), AwarePairs()
    before = mw.mixing.consensus_distance(X)
    plan = policy.plan(Round(0, X, X, algorithm=Algorithm()), policy.init(Context(graph)), network)
    for W in plan.params:
        network.mix(X, W, out=X)
    assert mw.mixing.consensus_distance(X) < 0.5 * before
    print(_peak())


# --- how ---
def in_turns(contenders: Mapping[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """The median CPU seconds of a call of each contender."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: median(times) for name, times in seconds.items()}


def _growth(
    what: str, many: float, few: float, small: Graph, large: Graph, bar: float, details: Mapping[str, float]
) -> Measurement:
    each, before = many / large.n, few / small.n
    return Measurement(
        f"{what}: time per node at {large.n:,} nodes over {small.n:,}", each / before, "×", bar, "lower",
        f"{1e6 * each:.1f} µs", f"{1e6 * before:.1f} µs", details,
    )  # fmt: skip


def _peak() -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9
