"""Parts from outside of the package: named in a recipe, shown in the report, resumed, and run in two processes."""

import json

import pytest
import torch.distributed as dist

from mixwise.experiments import Recipe, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.network.board import Board
from mixwise.network.world import Processes
from planning import assert_runs_resume
from process_pool import in_processes, run_in_processes

pytestmark = in_processes

RECIPE = {
    "name": "toys",
    "seeds": [0],
    "metrics": ["distance_to_optimum"],
    "base": {
        "steps": 12,
        "graph": "ring:6",
        "task": {"kind": "quadratics", "dim": 4},
        "optimizer": {"lr": "0.1/L"},
        "algorithm": {"kind": "toys.parts:ToyMomentum", "beta": 0.5},
        "policy": {"kind": "toys.parts:ToyPolicy", "strength": 2},
    },
    "variants": {"toy": {}},
}


def experiment(*overrides):
    return plan_experiment(Recipe.model_validate(RECIPE), overrides)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "simulated"
    run_experiment(experiment(), folder)
    return folder


def records(folder):
    return [json.loads(line) for line in (folder / "toy/seed-0/metrics.jsonl").read_text().splitlines()]


def test_the_report_shows_their_titles(simulated):
    page = (simulated / "report.html").read_text()
    assert "toy momentum of 0.5" in page
    assert "lazy weights every 2 mixings" in page


@pytest.mark.parametrize("before", [1, 3, 6])
def test_a_checkpoint_holds_their_state_bit_for_bit(before):
    assert_runs_resume(prepare(experiment().runs["toy"], seed=0).start, before, after=5)


def in_two_processes(rank, world, folder):
    board = Board(dist.distributed_c10d._get_default_store())
    run_experiment(experiment(), folder, world=Processes(board, rank, world, "toys", timeout=60.0))


def test_two_processes_leave_the_records_of_a_simulation(simulated, tmp_path):
    run_in_processes(2, in_two_processes, tmp_path / "divided")
    for one, other in zip(records(tmp_path / "divided"), records(simulated), strict=True):
        assert one == pytest.approx(other, rel=1e-11)
