"""Memory use is estimated before a run starts; a run that would not fit is rejected with alternatives."""

import gc
import logging
import sys
from dataclasses import replace

import psutil
import pytest
import torch
from torch import nn

from builders import cases, refused
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments import build, memory, run_experiment
from mixwise.experiments.memory import GB, Need, _free_in_groups, alternatives, free_memory
from mixwise.layout import Layout
from mixwise.tasks import ModuleTask
from mixwise.tasks.devices import checked_device
from mixwise.training.row_count import RowCount
from run_folders import classification, planned

pytestmark = pytest.mark.usefixtures("no_pictures")

TASK = classification(30, 300, 10, 100, partition={"kind": "iid"})
BASE = {"graph": "ring:4", "steps": 2, "task": TASK, "optimizer": {"kind": "adam", "lr": 1e-3}}
ADAM = RowCount(optimizer=2, algorithm=0, gradients=4, most=4)


def experiment(*overrides):
    return planned({"ha": {"policy": {"kind": "heterogeneity-aware"}}}, *overrides, metrics=["loss"], **BASE)


@pytest.fixture
def looked_at(monkeypatch):
    """Small runs are counted as well."""
    monkeypatch.setattr(memory, "_LARGE", 0)


@pytest.fixture
def little(looked_at, monkeypatch):
    """Two megabytes are free."""
    monkeypatch.setattr(memory, "free_memory", lambda device, processes=1: 2_000_000)


def test_the_announcement_of_a_run():
    need = Need(nodes=16, processes=1, dim=66_000_000, itemsize=4, rows=ADAM, passes=10**9, process=10**9, free=2 * GB)
    assert str(need) == (
        "16 nodes × 66.0 M parameters × 4 tensors (X, G, 2 optimizer) = 16.9 GB; "
        "18.9 GB with the program, the data and a pass; 2.0 GB free"
    )


def test_the_peak_is_in_a_mixing_or_in_a_pass():
    base = {"nodes": 2, "processes": 1, "dim": 100, "itemsize": 4}
    mixing = RowCount(optimizer=0, algorithm=1, gradients=3, most=5)
    assert Need(**base, rows=mixing, passes=100).new_bytes == 5 * 800
    assert Need(**base, rows=mixing, passes=5000).new_bytes == 3 * 800 + 5000
    assert Need(**base, rows=mixing, arriving=2).new_bytes == 5 * 800 + 2 * 400


def test_small_runs_are_not_counted():
    (config,) = experiment().runs.values()
    assert build.prepare(config, 0).need is None


@pytest.mark.parametrize("override", ["task.accumulate=1", "task.accumulate=2", "task.autocast=bfloat16"])
def test_a_run_reports_its_need_with_rows_in_float32(override, looked_at, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "mixwise"):
        run_experiment(experiment(override), tmp_path / "run")
    (need,) = [record.args[0] for record in caplog.records]
    assert (need.nodes, need.dim, need.itemsize) == (4, 30 * 300 + 300 + 3010, 4)
    assert need.rows.optimizer == 2
    if override == "task.accumulate=1":
        assert need.passes > 4 * 300 * 4 * 4  # the activations of four nodes: a small dense model is stacked
    assert need.process > 10**7
    assert need.free > 10**7


def test_a_run_that_does_not_fit_is_refused_before_rows_are_made(little, monkeypatch, tmp_path):
    monkeypatch.setattr(ModuleTask, "initial", lambda self, nodes: pytest.fail("rows were made"))
    says = (
        r"^the run does not fit into memory: 16 nodes × 12,310 parameters × 4 tensors \(X, G, 2 optimizer\) = 0.00 GB"
    )
    says += ".*task.train=head.*at most .*machines of this size with torchrun"
    refused(ConfigError, says, run_experiment, experiment("graph=ring:16", "placement=gme"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def needed(*overrides):
    """The need of a run on 16 nodes, and its task."""
    (config,) = experiment("graph=ring:16", *overrides).runs.values()
    return build.prepare(config, 0).need, build.build_task(config, 16, 0)


def test_alternatives_fit(looked_at):
    need, task = needed()
    for free in (need.new_bytes * 3 // 4, need.new_bytes // 3, need.new_bytes // 20):
        offered = alternatives(replace(need, free=free), task)
        nodes = next((int(option.split()[2]) for option in offered if option.startswith("at most")), 0)
        if nodes:
            fitting, more = (replace(need, nodes=count).new_bytes for count in (nodes, nodes + 1))
            assert fitting <= free < more


def test_a_smaller_pass_is_offered_if_the_rows_fit(looked_at):
    need, task = needed("task.batch=1000")
    assert "task.accumulate" in str(alternatives(replace(need, free=need.row_bytes), task))
    assert "task.accumulate" not in str(alternatives(replace(need, free=need.row_bytes - 1), task))


def test_parts_of_a_model_that_can_be_trained_alone():
    task = type("Fake", (ModuleTask,), {"__init__": lambda self: None})()
    task.template = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    task.layout = Layout(sum(p.numel() for p in task.template.parameters()))
    assert list(memory._trained_parts(task)) == [(1, 20 * 20 + 20 + 42), ("head", 42)]
    task.template[0].requires_grad_(False)
    assert list(memory._trained_parts(task)) == []  # the user has chosen already


@cases(
    "device, dtype, message",
    ("cpu", torch.bfloat16, "torch.bfloat16.*use torch.float32 or torch.float64"),
    ("meta", torch.float32, "'meta' cannot hold torch.float32 .*; choose cpu"),
    ("cuda:99", torch.float32, "'cuda:99'"),
)
def test_rows_in_other_precisions_and_places_are_refused(device, dtype, message):
    refused(TrainingError, message, checked_device, device, dtype)


# --- free memory ---
def test_free_memory_is_shared_by_processes():
    one, four = free_memory(torch.device("cpu")), free_memory(torch.device("cpu"), 4)
    assert 0 < four < one
    assert free_memory(torch.device("meta")) is None


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")


def test_limits_of_control_groups(tmp_path):
    own = tmp_path / "own"
    own.write_text("12:cpu:/elsewhere\n0::/user/job\n")
    root = tmp_path / "cgroup"
    group(root / "user", max=1000, current=700, stat="anon 5\ninactive_file 50")
    group(root / "user" / "job", max="max", current=100, stat="inactive_file 0")
    assert _free_in_groups(root, own) == [350]
    group(root / "user" / "job", max=200, current=150, stat="inactive_file 20")
    assert sorted(_free_in_groups(root, own)) == [70, 350]
    own.write_text("0::/\n")
    group(root, max=500, current=900, stat="inactive_file 0")
    assert _free_in_groups(root, own) == [0]
    group(root / "memory" / "docker", limit_in_bytes=900, usage_in_bytes=400, stat="total_inactive_file 100")
    own.write_text("4:memory:/docker\n")
    assert _free_in_groups(root, own) == [600]
    assert _free_in_groups(root, tmp_path / "nothing") == []


# --- a run needs no more memory at its end than after its first steps ---
LONG = {
    "metrics": ["loss"], "graph": "erdos-renyi:8,probability=0.5", "optimizer": {"lr": 0.01}, "checkpoint_every": 1000,
    "faults": {"message_loss": 0.1},
}  # fmt: skip


def used_at(tmp_path, steps, warm, used):
    """What `used` returns at step `warm` and at the end of a run."""
    found = []

    def measure(progress):
        if progress.step in (warm, steps - 1):
            gc.collect()
            found.append(used())

    run_experiment(planned({"pairs": {"policy": "pairs"}}, steps=steps, **LONG), tmp_path / "run", measure)
    return found


def test_records_are_not_kept_in_memory(tmp_path):
    warm, end = used_at(tmp_path, 120, 60, sys.getallocatedblocks)
    assert end - warm < 600  # objects, in 60 steps; 60 records have about 1,000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_000_steps(tmp_path):
    warm, end = used_at(tmp_path, 200_000, 20_000, lambda: psutil.Process().memory_info().rss)
    assert end < 1.01 * warm
