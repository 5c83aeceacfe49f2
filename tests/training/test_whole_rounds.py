"""Models are recorded right after a mixing: with local steps, the numbers of a run are rounded up to whole rounds."""

import logging

import pytest
from torch.optim.lr_scheduler import CosineAnnealingLR

import mixwise as mw
from builders import cases, refused, sgd, simulated, stepped
from mixwise.errors import TrainingError
from mixwise.experiments import load_recipe, load_run, plan_experiment, run_experiment
from mixwise.mixing import consensus_distance
from mixwise.network.world import World
from mixwise.tasks import random_quadratics
from mixwise.training import records, train


def run(steps=100, tau=8, policy="full-averaging", **options):
    task = random_quadratics(8, dim=4, seed=1)
    return train(task, "ring:8", policy, optimizer=sgd(0.001), steps=steps, local_steps=tau, **options)


def notes(caplog):
    return [record.getMessage() for record in caplog.records if "local_steps" in record.getMessage()]


# --- the loop ---
@cases(
    "steps, tau, options, expected",
    (5, 7, {}, [6]),  # with 5 steps, nothing would be mixed
    (100, 8, {"record_every": 50, "evaluate_every": 50}, [55, 103]),
    (20, 4, {"record_every": 6, "evaluate_every": 20}, [7, 15, 19]),
    (7, 3, {}, [2, 5, 8]),
    (3, 1, {}, [0, 1, 2]),
)
def test_every_record_follows_a_mixing(steps, tau, options, expected):
    result = run(steps, tau, **options)
    assert [record.step for record in result] == expected
    assert result.training.t == result.steps == expected[-1] + 1
    assert result.training.driver.t == result.steps // tau
    assert all(record.values["consensus_distance"] < 1e-24 for record in result)  # right after a full average


def test_the_rank_of_a_method_does_not_depend_on_the_steps_modulo_tau():
    """After 100 of 8 local steps, four would follow the last mixing: the nodes' models would be apart."""
    apart = stepped(simulated("full-averaging", graph=mw.graphs.ring(8), local_steps=8), 100)
    assert consensus_distance(apart.models) > 1e-6
    assert {run(steps).last.to_json() for steps in (97, 100, 104)} == {run(104).last.to_json()}


def test_a_loop_that_continues_ends_with_a_whole_round():
    training = stepped(simulated("metropolis-hastings", graph=mw.graphs.ring(8), local_steps=4), 5)
    assert [record.step for record in records(training, 10, 5, 10)] == [7, 11]


# --- the notice ---
def test_a_run_says_once_what_was_rounded(caplog):
    result = run(100, 8, evaluate_every=10, scheduler=lambda optimizer: CosineAnnealingLR(optimizer, 104))
    list(result)
    (note,) = notes(caplog)
    assert note.startswith("local_steps = 8: models are evaluated right after a mixing")
    assert note.endswith("steps = 100 become 104, evaluate_every = 10 becomes 16")


@cases("steps, options", (96, {}), (96, {"record_every": 24, "evaluate_every": 48}), (96, {"evaluate_every": 1}))
def test_what_fits_or_was_not_asked_for_is_not_said(caplog, steps, options):
    list(run(steps, 8, **options))
    assert notes(caplog) == []


# --- recipes and comparisons ---
def test_a_recipe_and_its_schedule_end_with_a_whole_round(tmp_path, caplog):
    changes = ["variants=dsgd-metropolis,ha-dsgd", "steps=10", "evaluate_every=3", "ha-dsgd.local_steps=4", "seeds=0,1"]
    experiment = plan_experiment(load_recipe("quadratics"), [*changes, "schedule={cosine: true}"])
    with caplog.at_level(logging.WARNING):
        run_experiment(experiment, tmp_path / "run")
    assert notes(caplog) == [
        "ha-dsgd: local_steps = 4: models are evaluated right after a mixing, so steps = 10 become 12, "
        "evaluate_every = 3 becomes 4"
    ]
    found = load_run(tmp_path / "run").results
    assert [record["step"] for record in found["ha-dsgd"][1]] == [3, 7, 11]
    assert found["dsgd-metropolis"][1][-1]["step"] == 9
    prepared = experiment.runs["ha-dsgd"].prepare(0, World())
    training = stepped(prepared.start(), prepared.steps)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)  # the end of the cosine
    assert prepared.recorded(prepared.steps) == [3, 7, 11]


def test_a_comparison_evaluates_every_method_after_a_mixing(tmp_path, caplog):
    methods = {"every": {"local_steps": 1}, "eighth": {"local_steps": 8, "evaluate_every": 20}}
    options = {
        "policy": "full-averaging",
        "optimizer": sgd(0.001),
        "steps": 50,
        "progress": False,
        "out": tmp_path / "r",
    }
    found = mw.compare(random_quadratics(8, dim=4), "ring:8", methods, **options)
    assert len(notes(caplog)) == 1
    assert [record["step"] for record in found.results["eighth"][0] if "distance_to_optimum" in record] == [23, 47, 55]
    assert all(record["consensus_distance"] < 1e-20 for record in found.results["eighth"][0])


def test_counts_are_checked_before_they_are_rounded():
    refused(TrainingError, "evaluate_every = 'often'; give a whole number", run, evaluate_every="often")
    options = {"optimizer": sgd(0.1), "steps": 4, "record_every": 0.5, "progress": False}
    refused(TrainingError, "record_every = 0.5", mw.compare, random_quadratics(4), "ring:4", {"a": "auto"}, **options)
