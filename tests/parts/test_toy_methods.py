"""A toy algorithm and a toy policy of another package, named in a recipe: run, reported, resumed, and in processes."""

import json
import sys

import pytest
import torch.distributed as dist

from mixwise.experiments import Recipe, plan_experiment, run_experiment
from mixwise.experiments.strict import validated
from mixwise.network.board import Board
from mixwise.network.processes import Processes
from processes import in_processes, run_in_processes

TOYS = '''
from __future__ import annotations

from dataclasses import dataclass, field

import torch

from mixwise.algorithms import DSGD
from mixwise.context import Context
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.parts import Count, Unit, part
from mixwise.plan import Plan
from mixwise.protocols import Algorithm, Network, Policy
from mixwise.round import Round
from mixwise.state import State


@part("toy-memory", title="toy memory of {keep:g}", cite="nobody", step="X⁺ = mix((1 − a) X′ + a M)")
@dataclass(frozen=True)
class Memory(Algorithm):
    """Mixes a running mean of the rows; the mean is a row of every node."""

    keep: Unit = 0.5
    inner: Algorithm = field(default=DSGD())

    def init(self, X: torch.Tensor, context: Context) -> State:
        return State(rows={"mean": X.clone()}, parts={"inner": self.inner.init(X, context.at("inner"))})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        mean = state.rows["mean"].mul_(self.keep).add_(round.X_prime, alpha=1 - self.keep)
        round.X_prime.copy_(mean)
        self.inner.mix(round, plan, state.parts["inner"], network)


@part("toy-sleep", "policy", title="toy sleep")
@dataclass(frozen=True)
class Sleep(Policy):
    """Metropolis-Hastings weights that fall asleep: lazier after every `naps` mixings, which the state counts."""

    naps: Count = 2

    def init(self, context: Context) -> State:
        return State(shared={"mixings": 0}, scratch={"W": metropolis_hastings(context.graph)})

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        W = state.scratch["W"]
        for _ in range(state.shared["mixings"] // self.naps):
            W = lazy(W)
        state.shared["mixings"] += 1
        return Plan((W,))
'''
RECIPE = {
    "name": "toys",
    "seeds": [0],
    "metrics": ["loss"],
    "base": {
        "steps": 8,
        "graph": "ring:5",
        "optimizer": {"lr": 0.01},
        "algorithm": {"kind": "toy_methods:Memory", "keep": 0.25, "inner": "dsgd"},
        "policy": {"kind": "alternating", "policies": [{"kind": "toy_methods:Sleep", "naps": 3}, "uniform"]},
        "checkpoint_every": 3,
    },
    "variants": {"toy": {}},
}


@pytest.fixture
def toys(tmp_path, monkeypatch):
    (tmp_path / "toy_methods.py").write_text(TOYS, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield str(tmp_path)
    sys.modules.pop("toy_methods", None)


@pytest.fixture
def whole(toys, tmp_path):
    run_experiment(experiment(), tmp_path / "whole")
    return tmp_path / "whole"


def experiment():
    return plan_experiment(validated(Recipe, RECIPE, "recipe toys"))


def records(folder):
    return (folder / "toy" / "seed-0" / "metrics.jsonl").read_bytes()


def test_the_report_names_them(whole):
    scene = json.loads((whole / "toy" / "seed-0" / "scene.json").read_text("utf-8"))
    assert scene["algorithm"] == "toy memory of 0.25"
    assert scene["policy"] == "in turn toy sleep (naps 3) and uniform weights"
    page = (whole / "report.html").read_text("utf-8")
    assert "toy memory of 0.25" in page
    assert "toy sleep (naps 3)" in page


def test_they_resume_bit_for_bit(whole, tmp_path):
    def stop(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), tmp_path / "stopped", stop)
    run_experiment(experiment(), tmp_path / "stopped", resume=True)
    assert records(tmp_path / "stopped") == records(whole)


def in_process(rank, world, toys, folder):
    """One process of the run."""
    sys.path.insert(0, toys)
    try:
        board = Board(dist.distributed_c10d._get_default_store())
        run_experiment(experiment(), folder, world=Processes(board, rank, world, "test", timeout=30.0))
    finally:
        sys.path.remove(toys)


@in_processes
def test_they_run_in_two_processes(toys, whole, tmp_path):
    run_in_processes(2, in_process, toys, tmp_path / "processes")
    here, there = ([json.loads(line) for line in records(folder).splitlines()] for folder in
                   (whole, tmp_path / "processes"))  # fmt: skip
    for mine, theirs in zip(here, there, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12)
