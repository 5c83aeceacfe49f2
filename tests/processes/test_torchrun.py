"""Recipes with their nodes divided over processes: the same folder as a simulation, in any division."""

import re
import sys

import pytest
import torch
import torch.distributed as dist
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import builders
import run_folders
from builders import stepped
from mixwise.data import gaussian_mixture, partition
from mixwise.experiments import Recipe, plan_experiment, run_experiment, runner
from mixwise.experiments.export import export_model
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import seeded
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.network.board import Board
from mixwise.network.world import Processes
from mixwise.tasks import ModuleTask
from mixwise.training.checkpoint import keep_only, load_checkpoint, newest_step, save_checkpoint
from process_pool import error_of, in_processes, run_in_processes
from programs import free_port, run_with_hook, running
from run_folders import approximately, classification, read_records, run_until, small_recipe

pytestmark = [in_processes, pytest.mark.timeout(400)]

STEPS = 12
AWARE = {"kind": "heterogeneity-aware", "period": 3, "sketch": {"dim": 20}}
QUADRATICS = {"task": {"kind": "quadratics"}, "graph": "random-connected:7", "optimizer": {"lr": "0.2/L"}}
MH = "metropolis-hastings"
RECIPE = small_recipe(
    # Every kind of memory: of nodes, of arcs, of all; of the optimizer, the policy, the schedule.
    {
        "aware": {
            "policy": {**AWARE, "smoothing": 0.5, "alternate_with": MH},
            "optimizer": {"momentum": 0.9},
            "schedule": {"warmup": 0.1, "decay_at": [0.6]},
        },
        "adam": {"policy": MH, "optimizer": {"kind": "adamw", "lr": 0.01}, "record_every": 3},
        "d2": {"algorithm": "d2", "policy": "lazy-metropolis-hastings"},
        "tracking": {"algorithm": "gradient-tracking", "policy": MH, "local_steps": 2},
        "relay": {"algorithm": {"kind": "quasi-global", "inner": "relay"}, "policy": "tree"},
        "push": {"algorithm": "push-sum", "graph": "directed-ring:5", "policy": "uniform-sender"},
        "choco": {"algorithm": {"kind": "choco", "compressor": {"kind": "quantize", "bits": 4}}, "policy": MH},
        "early": {"algorithm": "combine-while-adapt", "policy": AWARE},
        "mean": {"algorithm": "all-reduce", "policy": "none"},
        "placed": {"policy": {"kind": "heterogeneity-aware-matchings"}, "placement": "gme"},
        "quadratics": {**QUADRATICS, "policy": AWARE},
    },
    task=classification(hidden=6, samples=100, gradients="loop"), steps=STEPS, graph="ring:5", optimizer={"lr": 0.05},
    evaluate_every=4, checkpoint_every=4, dtype="float64",
)  # fmt: skip


def experiment(recipe=RECIPE):
    return plan_experiment(Recipe.model_validate(recipe))


def only(*variants, **changes):
    """The recipe with some of its variants, and other values in all of them."""
    return {**RECIPE, "variants": {name: {**RECIPE["variants"][name], **changes} for name in variants}}


def run_recipe(rank, world, recipe, folder, stop_at=None, resume=False):
    """One process of a run, which all of them stop after the record of step `stop_at` of the last variant."""
    runner.save_curves = runner.save_page = lambda *args: None
    processes = Processes(Board(dist.distributed_c10d._get_default_store()), rank, world, "test", timeout=30.0)
    stop = run_folders.stop_at(stop_at, list(recipe["variants"])[-1])
    try:
        summary = run_experiment(experiment(recipe), folder, stop, resume, processes)
    except run_folders.StoppedError:
        return None
    return summary.to_csv()


def assert_same_records(one, other, recipe, **tolerance):
    """The same fields in the same order, and numbers that differ by rounding."""
    for variant in recipe["variants"]:
        expected, found = read_records(one, variant), read_records(other, variant)
        assert [list(line) for line in found] == [list(line) for line in expected], variant
        assert found == approximately(expected, **tolerance), variant


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, no_pictures):
    folder = tmp_path_factory.mktemp("simulated") / "run"
    run_experiment(experiment(), folder)
    return folder


# --- the same folder ---


@pytest.mark.parametrize(("world", "recipe"), [(2, RECIPE), (4, only("aware", "relay", "early", "quadratics"))])
def test_processes_leave_the_folder_that_a_simulation_leaves(world, recipe, simulated, tmp_path):
    summaries = run_in_processes(world, run_recipe, recipe, tmp_path / "run")
    assert len(set(summaries)) == 1
    assert_same_records(simulated, tmp_path / "run", recipe)
    if recipe == RECIPE:
        for pattern in ("*", "*/seed-0/*"):
            there, expected = (
                sorted(path.relative_to(folder) for path in folder.glob(pattern))
                for folder in (tmp_path / "run", simulated)
            )
            assert there == expected
        assert (tmp_path / "run" / "config.yaml").read_bytes() == (simulated / "config.yaml").read_bytes()
    for place in (tmp_path / "run").glob("*/seed-0/checkpoint"):
        assert len(list(place.iterdir())) == 2 * world  # the last two checkpoints
        assert newest_step(place) == STEPS


@pytest.mark.parametrize(
    "variant", [v if v in ("aware", "relay") else pytest.param(v, marks=pytest.mark.soak) for v in RECIPE["variants"]]
)
def test_simulations_and_processes_resume_each_other(variant, simulated, tmp_path):
    """3 processes, then a simulation, then 4: each takes the run from the last checkpoint of those before."""
    recipe, folder = only(variant), tmp_path / "run"
    run_in_processes(3, run_recipe, recipe, folder, 5)
    assert newest_step(folder / variant / "seed-0" / "checkpoint") in (4, 6)
    run_until(7, experiment(recipe), folder, resume=True)
    run_in_processes(4, run_recipe, recipe, folder, None, True)
    assert_same_records(simulated, folder, recipe)


def with_statistics(network, buffers, folder=None, load=False, save=False, steps=6):
    """The figures of a model with BatchNorm after some steps."""
    splits = gaussian_mixture(classes=4, dim=8, samples=2000)
    parts = partition.dirichlet(splits.train.y, 5, 0.5, seed=0)

    def module():
        return seeded(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)), 0)

    task = ModuleTask(module, splits.train, parts, batch=5, test=splits.test, buffers=buffers, dtype=torch.float64)
    training = builders.simulated(metropolis_hastings(network.graph), task=task, network=network, lr=0.3)
    if load:
        load_checkpoint(training, folder)
    stepped(training, steps)
    if save:
        save_checkpoint(training, folder)
    values = task.evaluate(training.X, network.measuring())
    return values, network.traffic.parameters


def statistics_in_processes(rank, world, *args):
    return with_statistics(DistributedNetwork(ring(5), timeout=20.0), *args)


@pytest.mark.parametrize("buffers", ["local", "averaged"])
def test_statistics_of_nodes_are_judged_and_kept_where_they_are(buffers, tmp_path):
    """Each node with its own, the averaged model with the mean over all processes."""
    expected, sent = with_statistics(SimulatedNetwork(ring(5)), buffers, steps=12)
    assert len(set(expected.values())) == 4
    run_in_processes(2, statistics_in_processes, buffers, tmp_path / "checkpoint", False, True)
    for found, bytes_sent in run_in_processes(3, statistics_in_processes, buffers, tmp_path / "checkpoint", True):
        assert found == pytest.approx(expected, rel=1e-12)
        assert bytes_sent == sent


def test_weights_that_are_known_in_part_resume_in_any_division(tmp_path, no_pictures):
    """Neighbors' weights on a graph of unequal degrees: no process knows all of them, so none can tell p."""
    policy = {**AWARE, "solver": "local", "smoothing": 0.5}
    recipe = {**RECIPE, "variants": {"v": {"policy": policy, "graph": "star:6", "optimizer": {"momentum": 0.9}}}}
    run_experiment(experiment(recipe), tmp_path / "simulated")
    run_in_processes(4, run_recipe, recipe, tmp_path / "run", 5)
    run_in_processes(3, run_recipe, recipe, tmp_path / "run", 9, True)
    run_in_processes(2, run_recipe, recipe, tmp_path / "run", None, True)
    expected = read_records(tmp_path / "simulated", "v")
    for record in expected:
        record.pop("consensus_factor")
    assert read_records(tmp_path / "run", "v") == approximately(expected, rel=1e-8)


def test_a_model_is_exported_from_the_parts_of_all_processes(simulated, tmp_path):
    run_in_processes(3, run_recipe, only("aware"), tmp_path / "run")
    for model in ("average", "node:4"):
        export_model(simulated, "aware", model, tmp_path / "expected.safetensors")
        export_model(tmp_path / "run", "aware", model, tmp_path / "model.safetensors")
        expected, found = (load_file(tmp_path / f"{name}.safetensors") for name in ("expected", "model"))
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[name], value, rtol=1e-11, atol=1e-13) for name, value in expected.items())


# --- checkpoints that are not complete ---


def test_a_checkpoint_counts_when_all_parts_are_there(tmp_path):
    """What a kill between two processes' writes leaves: the one before is taken, whatever lies around."""

    def leave(step, *parts):
        for part in parts:
            save_file({}, tmp_path / f"step-{step:08}.nodes-{part}-of-5.safetensors", {"mixwise": "{}"})

    leave(4, "0-1", "2-3", "4-4")
    leave(8, "0-1", "4-4")
    leave(12, "0-1", "1-4")  # of two divisions
    assert newest_step(tmp_path) == 4
    leave(8, "2-3")
    assert newest_step(tmp_path) == 8
    keep_only(tmp_path, 8)
    assert {path.name[:13] for path in tmp_path.iterdir()} == {"step-00000004", "step-00000008"}


# --- what is refused ---


def refused(rank, world, recipe, folder, shared=True):
    return error_of(run_recipe, rank, world, recipe, folder if shared else folder / str(rank))[0]


def test_a_folder_that_not_all_see_is_refused(tmp_path):
    messages = run_in_processes(2, refused, only("d2"), tmp_path, False)
    assert re.fullmatch(r"process 1 does not see .*which process 0 has made; .* all machines share", messages[1])
    assert "rank 1" in messages[0]  # which is gone


def test_more_processes_than_nodes_are_refused(tmp_path):
    messages = run_in_processes(4, refused, only("d2", graph="ring:3"), tmp_path / "run")
    assert all("4 processes for 3 nodes" in message for message in messages)
    assert not (tmp_path / "run").exists()


# --- real processes: what a user types, and what kills them ---

TYPED = {**only("aware"), "name": "typed"}

# Process 1 is killed after its first checkpoint, unless it was started again.
KILLED = run_with_hook(
    'if os.environ["RANK"] == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":'
    " os.kill(os.getpid(), signal.SIGKILL)"
)
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def torchrun(processes, *words, options=()):
    options = ["--nproc-per-node", processes, "--master-port", free_port(), *options]
    return [sys.executable, "-m", "torch.distributed.run", *options, *words]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "typed.yaml").write_text(yaml.safe_dump(TYPED))
    (tmp_path / "killed.py").write_text(KILLED)
    return tmp_path


def test_a_killed_process_leads_to_a_restart_and_the_same_records(folder):
    """Neither --out nor --resume is given: processes that are started again know where the others were."""
    run_in_processes(2, run_recipe, TYPED, folder / "whole")
    command = torchrun(2, "killed.py", "run", "typed.yaml", options=["--max-restarts", 2])
    with running(command, folder, LOOPBACK) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "exitcode: -9" in output  # so it was hit
    (run,) = (folder / "runs" / "typed").iterdir()
    records = (run / "aware" / "seed-0" / "metrics.jsonl").read_bytes()
    assert records == (folder / "whole" / "aware" / "seed-0" / "metrics.jsonl").read_bytes()
    assert (run / "summary.csv").read_bytes() == (folder / "whole" / "summary.csv").read_bytes()
    assert output.count("Table, figures and records:") == 1


def test_an_error_of_all_processes_is_one_line(folder):
    (folder / "run").mkdir()
    (folder / "run" / "thesis.tex").write_text("years of work")
    with running(torchrun(2, "-m", "mixwise", "run", "typed.yaml", "--out", "run"), folder, LOOPBACK) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    assert [line for line in output.splitlines() if line.startswith("error: ")] == [
        "error: the folder run is not empty, and no run is ever overwritten; "
        "choose another with --out, or continue there with --resume (in Python: out=…, resume=True)"
    ]
    assert "mixwise/cli/" not in output  # no traceback of ours
