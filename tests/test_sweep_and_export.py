"""A sweep chooses on the validation split and tests the winner once; an export is a plain state_dict."""

import json

import pytest
import torch
from safetensors.torch import load_file

from mixwise.errors import ConfigError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare
from mixwise.experiments.export import export_model
from mixwise.experiments.sweep import split_grid, sweep
from mixwise.models import mlp
from mixwise.training.checkpoint import load_checkpoint

OVERRIDES = ["steps=8", "seeds=0-1", "variants=d2,dsgd", "task.data.validation=0.2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory, no_pictures):
    folder = tmp_path_factory.mktemp("sweep")
    return folder, sweep(load_recipe("digits"), [*OVERRIDES, "lr=0.0001,0.1"], folder)


def trained(folder, point, variant, seed, split):
    """The final rows of a run and their figures on a split, computed apart from the sweep."""
    experiment = plan_experiment(load_recipe("digits"), [*OVERRIDES, point, f"task.evaluate_on={split}"])
    training = prepare(experiment.runs[variant], seed).start()
    load_checkpoint(training, folder / point / variant / f"seed-{seed}" / "checkpoint")
    return training.X, training.task.evaluate(training.X)


def test_the_point_with_the_best_validation_accuracy_wins(swept):
    folder, result = swept
    for variant in ("d2", "dsgd"):
        accuracy = {
            point: sum(trained(folder, point, variant, seed, "validation")[1]["accuracy"] for seed in (0, 1))
            for point in ("optimizer.lr=0.0001", "optimizer.lr=0.1")
        }
        assert result.chosen[variant] == max(accuracy, key=accuracy.__getitem__)


def test_the_winner_is_tested_on_the_test_set(swept):
    folder, result = swept
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [(line["variant"], line["seed"]) for line in lines] == [("d2", 0), ("d2", 1), ("dsgd", 0), ("dsgd", 1)]
    for line in lines:
        _, expected = trained(folder, result.chosen[line["variant"]], line["variant"], line["seed"], "test")
        assert line["accuracy"] == expected["accuracy"]


def test_the_chosen_recipe_can_be_run(swept):
    folder, result = swept
    runs = plan_experiment(load_recipe(str(folder / "chosen.yaml"))).runs
    assert {name: f"optimizer.lr={config.optimizer.lr:g}" for name, config in runs.items()} == result.chosen


def test_a_grid_is_what_has_several_values():
    assert split_grid(["a.b=1,2", "variants=x,y", "lr=3"]) == (["variants=x,y", "optimizer.lr=3"], [["a.b=1", "a.b=2"]])
    with pytest.raises(ConfigError, match="several values"):
        sweep(load_recipe("digits"), ["lr=0.1"], None)


@pytest.mark.parametrize("model", ["average", "node:3"])
def test_an_export_loads_strictly_and_holds_the_row(swept, model, tmp_path):
    folder, _ = swept
    X, _ = trained(folder, "optimizer.lr=0.1", "d2", 1, "test")
    export_model(folder / "optimizer.lr=0.1", "d2", model, tmp_path / "m.safetensors", seed=1)
    module = mlp((64, 32, 10))
    module.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    row = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(row, X[3] if model == "node:3" else X.double().mean(0).float())


@pytest.mark.parametrize(
    ("variant", "model", "seed", "says"),
    [
        ("d3", "average", 0, "unknown variant 'd3'.*d2, dsgd"),
        ("d2", "average", None, "choose one with --seed"),
        ("d2", "average", 7, "no seed 7"),
        ("d2", "node:16", 0, "node:0 to node:15"),
        ("d2", "best", 0, "average"),
    ],
)
def test_a_wrong_export_says_what_is_there(swept, variant, model, seed, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        export_model(swept[0] / "optimizer.lr=0.1", variant, model, tmp_path / "m.safetensors", seed)
    assert list(tmp_path.iterdir()) == []
