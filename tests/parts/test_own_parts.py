"""Parts from outside of the package: named in a recipe, shown in the report, resumed, and run in two processes."""

import json
import sys

import pytest
import torch
import torch.distributed as dist

from mixwise.experiments import Recipe, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.network.board import Board
from mixwise.network.world import Processes
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint
from process_pool import in_processes, run_in_processes

pytestmark = in_processes

SOURCE = '''
from dataclasses import dataclass

import torch

from mixwise.algorithms import DSGD
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.parts import Count, Unit, part
from mixwise.protocols import Plan, Policy, State


@part("toy-momentum", title="toy momentum of {beta:g}")
@dataclass(frozen=True)
class ToyMomentum(DSGD):
    """Heavy-ball momentum inside of the algorithm."""

    beta: Unit = 0.9

    def init(self, X, context):
        return State(rows={"m": torch.zeros_like(X)})

    def direction(self, G, state, network):
        G.copy_(state.rows["m"].mul_(self.beta).add_(G))


@part("toy-policy", title="lazy weights every {strength} mixings")
@dataclass(frozen=True)
class ToyPolicy(Policy):
    """Metropolis-Hastings weights, lazy ones at every `strength`-th mixing; it counts for itself."""

    strength: Count = 3

    def init(self, context):
        return State(shared={"count": 0}, scratch={"W": metropolis_hastings(context.graph)})

    def plan(self, round, state, network):
        state.shared["count"] += 1
        W = state.scratch["W"]
        return Plan((lazy(W) if state.shared["count"] % self.strength == 0 else W,))
'''
RECIPE = {
    "name": "toys",
    "seeds": [0],
    "metrics": ["distance_to_optimum"],
    "base": {
        "steps": 12,
        "graph": "ring:6",
        "task": {"kind": "quadratics", "dim": 4},
        "optimizer": {"lr": "0.1/L"},
        "algorithm": {"kind": "toy_parts:ToyMomentum", "beta": 0.5},
        "policy": {"kind": "toy_parts:ToyPolicy", "strength": 2},
    },
    "variants": {"toy": {}},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "toy_parts.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("toy_parts", None)


def experiment(*overrides):
    return plan_experiment(Recipe.model_validate(RECIPE), overrides)


@pytest.fixture(scope="module")
def simulated(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "simulated"
    run_experiment(experiment(), folder)
    return folder


def records(folder):
    return [json.loads(line) for line in (folder / "toy/seed-0/metrics.jsonl").read_text().splitlines()]


def test_the_report_shows_their_titles(simulated):
    page = (simulated / "report.html").read_text()
    assert "toy momentum of 0.5" in page
    assert "lazy weights every 2 mixings" in page


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_checkpoint_holds_their_state_bit_for_bit(source, steps, tmp_path):
    prepared = prepare(experiment().runs["toy"], seed=0)
    first, second = prepared.start(), prepared.start()
    for _ in range(steps):
        first.step()
    save_checkpoint(first, tmp_path / "c")
    load_checkpoint(second, tmp_path / "c")
    for _ in range(5):
        first.step()
        second.step()
        assert torch.equal(second.X, first.X)
    assert second.driver.policy_state.shared["count"] == steps + 5


def in_two_processes(rank, world, source, folder):
    sys.path.insert(0, str(source))
    board = Board(dist.distributed_c10d._get_default_store())
    run_experiment(experiment(), folder, world=Processes(board, rank, world, "toys", timeout=60.0))


def test_two_processes_leave_the_records_of_a_simulation(simulated, source, tmp_path):
    run_in_processes(2, in_two_processes, source, tmp_path / "divided")
    for one, other in zip(records(tmp_path / "divided"), records(simulated), strict=True):
        assert one == pytest.approx(other, rel=1e-11)
