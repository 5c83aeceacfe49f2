"""Parts of another package in recipes, in checkpoints and in processes."""

import json
import re
from importlib import metadata

import pytest
import torch.distributed as dist
import yaml

from builders import cases, refused
from mixwise.errors import ConfigError
from mixwise.experiments import load_run, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.experiments.config import Recipe, validated
from mixwise.network.board import Board
from mixwise.network.world import Processes
from mixwise.parts import build, registry
from mixwise.policies import HeterogeneityAware
from mixwise.storage import parsed_yaml
from planning import assert_runs_resume
from process_pool import in_processes, run_in_processes
from run_folders import approximately, read_records


@pytest.fixture(autouse=True)
def entry_points(monkeypatch):
    """A package outside of mixwise, with entry points for some of its parts."""
    names = {"scheme.cautious": "toys.parts:cautious", "task.bowls": "toys.parts:bowls"}
    points = [metadata.EntryPoint(name, where, "mixwise.parts") for name, where in names.items()]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: points if group == "mixwise.parts" else [])


def recipe(**base):
    usual = {"steps": 4, "graph": "ring:4", "optimizer": {"lr": 0.05}, "policy": "metropolis-hastings"}
    given = {"name": "toys", "seeds": [0], "metrics": ["loss"], "base": {**usual, **base}, "variants": {"toy": {}}}
    return validated(Recipe, given, "recipe toys")


CLASSIFIES = {
    "kind": "classification",
    "data": {"kind": "toys.parts:stripes", "options": {"samples": 48}},
    "model": {"kind": "toys.parts:Net", "options": {"width": 5}},
    "partition": {"kind": "toys.parts:in_turn", "first": "odd"},
}


def test_every_part_of_a_run_can_come_from_another_package(tmp_path):
    given = recipe(
        graph="toys.parts:wheel:7,spokes=4",
        task=CLASSIFIES,
        policy={"kind": "fixed", "weights": {"kind": "cautious", "rest": 0.25}},
    )
    run_experiment(plan_experiment(given), tmp_path / "run")
    scene = json.loads((tmp_path / "run" / "toy" / "seed-0" / "scene.json").read_text("utf-8"))
    assert (scene["n"], len(scene["edges"])) == (7, 6 + 4)
    assert scene["policy"] == "cautious weights (rest 0.25)"
    assert scene["counts"] == [[3, 4], [4, 3], [3, 4], [4, 3], [3, 4], [3, 3], [4, 3]]
    assert scene["dim"] == 3 * 5 + 5 + 5 * 2 + 2
    assert len(load_run(tmp_path / "run").results["toy"][0]) == 4


def test_a_task_of_another_package_by_its_entry_point(tmp_path):
    run_experiment(plan_experiment(recipe(task={"kind": "bowls", "depth": 2})), tmp_path / "run")
    assert len(load_run(tmp_path / "run").results["toy"][0]) == 4
    with pytest.raises(ConfigError, match=r"bowls have no epochs; give steps"):
        run_experiment(plan_experiment(recipe(task="bowls", epochs=1, steps=None)), tmp_path / "other")
    assert not (tmp_path / "other" / "config.yaml").exists()


@cases(
    "base, says",
    ({"policy": "cautios"}, "policy: unknown policy 'cautios'; did you mean cautious?"),
    ({"policy": {"weights": {"kind": "cautious", "rest": 0}}}, "policy.weights.rest = 0: input should be greater"),
    ({"task": {"kind": "bowls", "depth": -1}}, "task.depth = -1: input should be greater than 0"),
    ({"task": {"kind": "bowls", "nodes": 3}}, "task: unknown key 'nodes'; allowed: depth"),
    ({"task": {**CLASSIFIES, "data": {"kind": "toys.parts:stripes", "options": {"samples": 0}}}},
     "task.data.options.samples = 0: input should be greater than or equal to 1"),
    ({"task": {**CLASSIFIES, "data": {"kind": "toys.parts:dot"}}}, "task.data: 'toys.parts:dot' cannot be"),
    ({"task": {**CLASSIFIES, "model": {"kind": "toys.parts:Net", "options": {"widht": 1}}}},
     "task.model.options: unknown key 'widht'; did you mean width?"),
    ({"task": {**CLASSIFIES, "partition": {"kind": "toys.parts:in_turn", "first": "last"}}},
     "task.partition.first = 'last': input should be 'even' or 'odd'"),
)  # fmt: skip
def test_wrong_options_of_such_parts_are_found_when_a_run_is_planned(base, says):
    refused(ConfigError, "^" + re.escape(f"recipe toys, variant toy: {says}"), plan_experiment, recipe(**base))


# --- recipes and their configurations ---
def matches(one, two):
    """Whether two recipes with one variant each describe the same run."""
    (a,), (b,) = (plan_experiment(each).runs.values() for each in (one, two))
    return a.matches(b.described())


def test_a_configuration_that_spells_out_the_defaults_is_the_same_experiment(tmp_path):
    short = recipe(task={**CLASSIFIES, "partition": {"alpha": 0.5}}, policy={"kind": "heterogeneity-aware"})
    spelled_out = {"kind": "dirichlet", "alpha": 0.5}
    aware = {"kind": "heterogeneity-aware", "period": 1, "sketch": {"kind": "count", "dim": 100}, "balance": 0.1}
    task = {**CLASSIFIES, "partition": spelled_out, "batch": 32, "augment": False, "train": "all"}
    long = recipe(task=task, algorithm={"kind": "dsgd"}, policy=aware)
    assert matches(long, short)
    other = recipe(task={**CLASSIFIES, "partition": {"alpha": 0.4}}, policy={"kind": "heterogeneity-aware"})
    assert not matches(long, other)
    run_experiment(plan_experiment(long), tmp_path / "run")
    run_experiment(plan_experiment(short), tmp_path / "run", resume=True)


def test_the_configuration_of_a_run_holds_its_parts_as_they_came():
    written = yaml.safe_load(plan_experiment(recipe(task={"noise": 0.5})).to_yaml())["variants"]["toy"]
    assert (written["task"], written["policy"], written["algorithm"]) == ({"noise": 0.5}, "metropolis-hastings", "dsgd")


# --- resumed, and run in two processes ---
MOMENTUM, LAZY = {"kind": "toys.parts:ToyMomentum", "beta": 0.5}, {"kind": "toys.parts:ToyPolicy", "strength": 2}
OWN = {"task": {"kind": "quadratics", "dim": 4}, "steps": 12, "optimizer": {"lr": "0.1/L"}}


def own_parts():
    return plan_experiment(recipe(algorithm=MOMENTUM, policy=LAZY, **OWN))


@pytest.mark.parametrize("before", [1, 3, 6])
def test_a_checkpoint_holds_the_state_of_own_parts_bit_for_bit(before):
    assert_runs_resume(prepare(own_parts().runs["toy"], seed=0).start, before, after=5)


def in_two_processes(rank, world, folder):
    board = Board(dist.distributed_c10d._get_default_store())
    run_experiment(own_parts(), folder, world=Processes(board, rank, world, "toys", timeout=60.0))


@in_processes
def test_two_processes_leave_the_records_of_a_simulation_and_the_report_shows_the_titles(tmp_path):
    run_experiment(own_parts(), tmp_path / "whole")
    run_in_processes(2, in_two_processes, tmp_path / "divided")
    divided, whole = (read_records(tmp_path / name, "toy") for name in ("divided", "whole"))
    assert divided == approximately(whole)
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "toy momentum of 0.5" in page
    assert "lazy weights every 2 mixings" in page


AWARE = "policy: {kind: heterogeneity-aware, alternate_with: metropolis-hastings}"


@cases(
    "family, name, says",
    ("algorithm", "ha-dsgd", f"HA-DSGD is algorithm: dsgd with {AWARE}"),
    ("algorithm", "HA-DAdam", f"HA-DAdam is algorithm: dadam with {AWARE}"),
    ("policy", "ce-gme", "CE-GME, weights that are fitted to sketches, is policy: heterogeneity-aware"),
    ("policy", "gme", "weights that minimize the gradient mixing error are policy: heterogeneity-aware"),
    ("algorithm", "heterogeneity-aware", "heterogeneity-aware is a policy: write policy: heterogeneity-aware"),
    ("policy", "quasi-global", "quasi-global is an algorithm: write algorithm: quasi-global"),
)
def test_names_of_the_paper_and_of_other_families_are_explained(family, name, says):
    refused(ConfigError, f"^unknown {family} '{name}'; {re.escape(says)}$", build, family, name)
    assert build("policy", parsed_yaml(AWARE, "")["policy"]) == HeterogeneityAware(alternate_with="metropolis-hastings")
