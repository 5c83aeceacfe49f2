"""Many nodes in one process: a step beside its gradients, and the cost of a node with ten times as many of them.

Logistic regression on digits, 650 parameters, batches of 16, SGD, on a torus. The limit is what no implementation can
save: the stacked forward and backward passes, and one copy of the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch

import mixwise as mw
from mixwise.data.streams import streams
from mixwise.graphs import Graph, torus
from mixwise.network import SimulatedNetwork
from mixwise.policies import AwarePairs, EdgeColoring, Fixed, HeterogeneityAware, Pairs
from mixwise.protocols import Algorithm, Context, Policy, Round
from mixwise.tasks import ModuleTask
from mixwise.training import Training

from .measure import Benchmark, Contestant, Contestants, memory
from .memory import in_processes

LIMIT = "gradients and one copy"
METROPOLIS = Fixed(mw.mixing.metropolis_hastings)


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    graph, small, many = (torus(4, 4),) * 3 if tiny else (torus(316, 316), torus(80, 128), torus(320, 320))
    for name, policy, bar in (
        ("Metropolis-Hastings", METROPOLIS, 3.0),
        ("pairs, as auto chooses", Pairs(), 6.0),
        ("aware pairs", AwarePairs(), 6.0),
    ):
        yield Benchmark(
            f"A step of 99,856 nodes, {name}: how much more than its limit?",
            partial(step_and_limit, graph, policy), bar, LIMIT, "lower", limit=LIMIT, rounds=3,
        )  # fmt: skip
    for name, policy in (
        ("Metropolis-Hastings", METROPOLIS), ("edge coloring", EdgeColoring()), ("aware pairs", AwarePairs()),
    ):  # fmt: skip
        yield Benchmark(
            f"Time per node of a step, {name}: how much more with ten times as many nodes?",
            partial(growth, small, many, policy), 1.5, "10,240 nodes", "lower", rounds=3,
        )  # fmt: skip
    yield Benchmark(
        "Time per node of weights by solver=local, tolerance 0.1: how much more with ten times as many nodes?",
        partial(local_growth, small, many), 2.0, "10,240 nodes", "lower", rounds=3,
    )  # fmt: skip
    for what, bar, words in (
        ("torus of 99,856 nodes, D-SGD with aware pairs", 6.0, ("step", "4" if tiny else "316")),
        ("ring of 1,000,000 nodes × 10 numbers, mixed with aware pairs", 4.0, ("ring", "100" if tiny else "1000000")),
    ):
        make = partial(in_processes, {"mixwise": words}, module="large")
        yield Benchmark(f"Memory at the peak, {what}?", make, bar, better="lower", rounds=1, unit="GB")


def step_and_limit(graph: Graph, policy: Policy) -> Contestants:
    run = started(graph, policy)
    other = torch.empty_like(run.X)

    def limit(_: int) -> None:
        with torch.enable_grad():
            run.task.losses_and_gradients(run.X, run.network.nodes, run.t)
        other.copy_(run.X)

    return {"mixwise": Contestant(lambda _: run.step()), LIMIT: Contestant(limit)}


def growth(small: Graph, many: Graph, policy: Policy) -> Contestants:
    runs = started(many, policy), started(small, policy)
    copies = [torch.empty_like(run.X) for run in runs]
    found = {
        f"{nodes} nodes": Contestant(lambda _, run=run: run.step(), run.task.nodes)
        for nodes, run in zip(("102,400", "10,240"), runs, strict=True)
    }
    return found | {
        f"a copy, {nodes} rows": Contestant(lambda _, run=run, to=to: to.copy_(run.X), run.task.nodes)
        for nodes, run, to in zip(("102,400", "10,240"), runs, copies, strict=True)
    }


def local_growth(small: Graph, many: Graph) -> Contestants:
    """CE-GME without a center, to the same tolerance."""

    def plan(graph: Graph) -> Contestant:
        policy, network = HeterogeneityAware(solver="local", tolerance=0.1), SimulatedNetwork(graph)
        X = torch.randn(graph.n, 64, generator=torch.Generator().manual_seed(0))
        look = Round(0, X, X, torch.zeros_like(X), algorithm=Algorithm())
        return Contestant(lambda _: policy.plan(look, policy.init(Context(graph)), network), graph.n)

    return {"102,400 nodes": plan(many), "10,240 nodes": plan(small)}


def started(graph: Graph, policy: Policy) -> Training:
    """A run whose pairs are planned as far ahead as they ever are, so that its steps cost what later ones cost."""
    data = mw.data.digits()
    model, parts = partial(mw.models.logistic_regression, 64, 10), streams(data.train.y, graph.n)
    task = ModuleTask(model, data.train, parts, batch=16)
    training = Training(task, SimulatedNetwork(graph), policy, None, lambda rows: torch.optim.SGD(rows, lr=0.1))
    if isinstance(policy, Pairs):
        training.driver.policy_state.scratch["schedule"].rounds_of(10**6)
    return training


# --- in processes of their own ---
def step(side: str) -> None:
    """Two steps with aware pairs."""
    training = started(torus(int(side), int(side)), AwarePairs())
    training.step()
    training.step()


def ring(nodes: str) -> None:
    """One mixing of 10 numbers per node."""
    graph = mw.graphs.ring(int(nodes))
    X, network, policy = torch.randn(graph.n, 10), SimulatedNetwork(graph), AwarePairs()
    before = mw.mixing.consensus_distance(X)
    plan = policy.plan(Round(0, X, X, algorithm=Algorithm()), policy.init(Context(graph)), network)
    for W in plan.params:
        network.mix(X, W, out=X)
    assert mw.mixing.consensus_distance(X) < 0.5 * before


if __name__ == "__main__":
    {"step": step, "ring": ring}[sys.argv[1]](sys.argv[2])
    print(memory("VmHWM") / 1e9)
