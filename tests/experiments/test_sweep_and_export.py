"""A sweep chooses on the validation split and tests the winner once; an export is a complete, plain state_dict."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from builders import cases, refused, simulated, stepped
from mixwise.data import Dataset, partition
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare
from mixwise.experiments.experiment_folder import LOCK
from mixwise.experiments.export import export_model
from mixwise.experiments.grid import split_grid
from mixwise.experiments.sweep import edges, sweep
from mixwise.graphs import ring
from mixwise.models import seeded
from mixwise.tasks import ModuleTask
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint
from small_net import Net

OVERRIDES = ["steps=8", "seeds=0-1", "variants=d2,dsgd", "task.data.validation=0.2"]
NODES = 4
STREAM = torch.Generator().manual_seed(0)
DATA = Dataset(torch.randn(60, 6, generator=STREAM), torch.arange(60) % 3, 3)


# --- sweep ---
@pytest.fixture(scope="module")
def swept(tmp_path_factory, no_pictures):
    folder, grid = tmp_path_factory.mktemp("sweep"), [*OVERRIDES, "lr=0.0001,0.1"]

    def second(progress):
        """No other sweep may use the folder meanwhile."""
        assert progress.point in ("lr=0.0001", "lr=0.1")
        refused(ConfigError, "in use by process", sweep, load_recipe("digits"), grid, folder)

    result = sweep(load_recipe("digits"), grid, folder, second)
    assert not list(folder.rglob(LOCK))
    return folder, result


def evaluated(folder, point, variant, seed, split):
    """The metrics of a run's final rows on a split, computed apart from the sweep."""
    experiment = plan_experiment(load_recipe("digits"), [*OVERRIDES, point, f"task.evaluate_on={split}"])
    training = prepare(experiment.runs[variant], seed).start()
    load_checkpoint(training, folder / point / variant / f"seed-{seed}" / "checkpoint")
    return training.task.evaluate(training.X)


def test_the_point_with_the_best_validation_accuracy_wins_and_is_a_recipe(swept):
    folder, result = swept
    for variant in ("d2", "dsgd"):
        accuracy = {
            point: sum(evaluated(folder, point, variant, seed, "validation")["accuracy"] for seed in (0, 1))
            for point in ("optimizer.lr=0.0001", "optimizer.lr=0.1")
        }
        assert result.chosen[variant] == max(accuracy, key=accuracy.__getitem__)
    runs = plan_experiment(load_recipe(str(folder / "chosen.yaml"))).runs
    assert {name: f"optimizer.lr={config.optimizer.lr:g}" for name, config in runs.items()} == result.chosen


def test_the_winner_is_tested_on_the_test_set(swept):
    folder, result = swept
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [(line["variant"], line["seed"]) for line in lines] == [("d2", 0), ("d2", 1), ("dsgd", 0), ("dsgd", 1)]
    for line in lines:
        expected = evaluated(folder, result.chosen[line["variant"]], line["variant"], line["seed"], "test")
        assert line["accuracy"] == expected["accuracy"]


def test_a_choice_on_the_edge_of_the_grid_is_noted_with_the_next_value(swept):
    folder, result = swept
    for variant, point in result.chosen.items():
        value, further = ("0.0001", "1e-07") if point.endswith("0.0001") else ("0.1", "100")
        note = f"{variant}: lr={value} is on the edge of the grid, so the best value may lie beyond; add lr={further}"
        assert note in result.notes
        assert note in (folder / "summary.md").read_text("utf-8")
    assert len(result.notes) == 2


@cases(
    "values, chosen, further",
    (("optimizer.momentum=0.1", "optimizer.momentum=0.5"), 1, None),  # 2.5 is not allowed
    (("optimizer.momentum=0.1", "optimizer.momentum=0.5"), 0, "optimizer.momentum=0.02"),
    (("task.batch=1", "task.batch=2"), 0, None),
    (("task.batch=1", "task.batch=2"), 1, "task.batch=5"),
    (("optimizer.nesterov=false", "optimizer.nesterov=true"), 0, None),
    (("optimizer.weight_decay=0", "optimizer.weight_decay=0.1"), 0, None),
    (("optimizer.lr=0.01", "optimizer.lr=0.1", "optimizer.lr=1"), 1, None),
    (("optimizer.lr=0.01", "optimizer.lr=0.1", "optimizer.lr=1"), 0, "lr=0.001"),
)
def test_the_end_of_what_is_allowed_is_no_edge(values, chosen, further):
    notes = edges("v", [values], [values[chosen]], lambda point: plan_experiment(load_recipe("digits"), point))
    assert [note.rpartition("add ")[2] for note in notes] == [further] * (further is not None)


def test_a_grid_is_what_has_several_values():
    assert split_grid(["a.b=1,2", "variants=x,y", "lr=3"]) == (["variants=x,y", "optimizer.lr=3"], [["a.b=1", "a.b=2"]])
    refused(ConfigError, "several values", sweep, load_recipe("digits"), ["lr=0.1"], None)


@cases(
    "variant, model, seed, says",
    ("d3", "average", 0, "unknown variant 'd3'.*d2, dsgd"),
    ("d2", "average", None, "choose one with --seed"),
    ("d2", "average", 7, "no seed 7"),
    ("d2", "node:16", 0, "node:0 to node:15"),
    ("d2", "best", 0, "average"),
)
def test_a_wrong_export_says_what_is_there(swept, variant, model, seed, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        export_model(swept[0] / "optimizer.lr=0.1", variant, model, tmp_path / "m.safetensors", seed)
    assert list(tmp_path.iterdir()) == []


# --- export ---
class Everything(Net):
    """Also a frozen layer with two names, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.frozen_again = self.frozen
        self.register_buffer("unsaved", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        return super().forward(self.frozen_again(x)) * self.unsaved


def make_training(seed=0, module=Everything):
    task = ModuleTask(lambda: seeded(module, seed), DATA, partition.iid(60, NODES, 0), batch=6)
    return simulated("metropolis-hastings", graph=ring(NODES), task=task, lr=0.1)


@pytest.fixture
def run(tmp_path):
    training = stepped(make_training(), 5)
    place = tmp_path / "run" / "v" / "seed-0"
    place.mkdir(parents=True)
    save_checkpoint(training, place / "checkpoint")
    return tmp_path / "run", training


@pytest.mark.parametrize("model", ["average", "node:3"])
def test_an_export_loads_strictly_and_is_the_trained_model(run, model, tmp_path):
    folder, training = run
    export_model(folder, "v", model, tmp_path / "m.safetensors")
    module = seeded(Everything, 99)  # nothing of it may survive
    module.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    task, X = training.task, training.X
    expected = task.average_module(X) if model == "average" else task.node_module(X, 3)
    for name, value in expected.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    assert torch.equal(module.eval()(DATA.x), expected.eval()(DATA.x))
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(module.state_dict())


def test_a_resumed_run_continues_with_the_frozen_parameters_it_began_with(run):
    folder, training = run
    other = make_training(seed=1)  # as if the factory drew other values
    load_checkpoint(other, folder / "v" / "seed-0" / "checkpoint")
    assert torch.equal(stepped(other, 3).X, stepped(training, 3).X)


def test_nodes_share_frozen_parameters():
    training = stepped(make_training(), 1)
    modules = training.task._run._way._modules
    assert len({id(module) for module in modules}) == len(modules)
    assert len({module.frozen.weight.data_ptr() for module in modules}) == 1
    assert training.task.node_module(training.X, 0).frozen.weight is not training.task.template.frozen.weight


def test_a_frozen_parameter_that_changes_is_one_clear_error():
    class Teacher(Everything):
        def forward(self, x):
            with torch.no_grad():
                self.frozen.weight.mul_(0.9)
            return super().forward(x)

    training = make_training(module=Teacher)
    refused(TrainingError, r"changes a frozen parameter.*as a buffer", training.step)
