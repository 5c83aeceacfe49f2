"""Sizes that cannot work are refused before memory is taken; odd files in a run folder cost no more than themselves."""

import gzip
import os
import shutil
import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock, patch
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
import torch
import yaml

import mixwise as mw
from builders import cases, refused
from mixwise.cli.weights_command import _gradients
from mixwise.data.standard import _read_idx
from mixwise.errors import ConfigError, DataError, MixwiseError, TrainingError
from mixwise.experiments import Recipe, load_recipe, load_run, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.experiments.sweep import sweep
from mixwise.graphs import parse
from mixwise.report.folder import read_folder
from mixwise.report.watch import WatchServer, _Handler
from mixwise.tasks.pass_memory import evaluation_bytes
from run_folders import classification, counted_steps, planned, run_until, served, small_recipe, wait_until

pytestmark = pytest.mark.usefixtures("no_pictures")
MH = {"policy": "metropolis-hastings"}
TASK = {"steps": 8, "graph": "ring:4", "optimizer": {"lr": 0.05}, "checkpoint_every": 2, "evaluate_every": 4}


def experiment(*changes):
    task = classification()
    return planned({"a": MH, "b": MH}, *changes, seeds=[0, 1], metrics=["loss", "accuracy"], task=task, **TASK)


# --- sizes ---
@cases(
    "change, says",
    ("task.model.options.sizes=[8, 1000000000, 4]", r"the model does not fit into memory: 13000\.0 M parameters"),
    ("task.model.options.sizes=[8, 9000000000000000000, 4]", "the model cannot be built .*overflow"),
    ("task.batch=10000000", r"task\.batch = 10000000 is more than all 160"),
    ("task.data.options.samples=100000000000", "1e.08 numbers"),
    ("policy={kind: heterogeneity-aware, sketch: {dim: 10000000000}}", "less than or equal to 65536"),
    ("graph=grid:+4x2000000", "allowed are 5e"),
    ("graph=exponential:4000000", "allowed are 5e"),
    ("task={kind: quadratics, dim: 100000}", "allowed are 1e"),
    ("graph=ring:200000", "every node needs a sample: use 1 to 160 nodes"),
)
def test_a_size_that_cannot_work_is_refused_before_memory_is_taken(change, says):
    def start():
        prepare(next(iter(experiment(change).runs.values())), 0)

    before = psutil.Process().memory_info().rss
    refused(MixwiseError, says, start)
    assert psutil.Process().memory_info().rss < before + 300_000_000


def test_a_graph_of_a_million_edges_is_quick_and_right():
    start = time.process_time()
    graph = parse("grid:4x250000")
    assert time.process_time() - start < 5
    assert len(graph.edge_array) == 3 * 250_000 + 4 * 249_999
    assert (graph.edge_array[:, 0] < graph.edge_array[:, 1]).all()
    order = np.lexsort(graph.edge_array.T[::-1])
    assert np.array_equal(order, np.arange(len(order)))


def test_an_evaluation_is_estimated_without_its_memory():
    """The activations of the last layer would take 40 × 4,000,000 numbers, its weights 8 × 4,000,000."""
    task = prepare(experiment("task.batch=1").runs["a"], 0).start().task
    task.template = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4_000_000, device="meta"))
    assert evaluation_bytes(task) > 40 * 4_000_000 * 4


def test_no_more_is_decompressed_than_an_idx_header_announces(tmp_path):
    bomb = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 2) + bytes(50_000_000))
    (tmp_path / "x.gz").write_bytes(bomb)
    before = psutil.Process().memory_info().rss
    refused(DataError, "more, but its header", _read_idx, tmp_path / "x.gz", 3)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", *3 * [2**31])))
    refused(DataError, "announces more than 1.1 GB", _read_idx, tmp_path / "x.gz", 3)
    assert psutil.Process().memory_info().rss < before + 40_000_000


# --- found by the fuzzer ---
def test_graphs_and_parts_that_once_were_tracebacks():
    assert parse("random-geometric:9,radius=1e308").n == 9
    refused(MixwiseError, "cannot be imported", parse, ".inf:hypercube:3")
    refused(MixwiseError, "neither a class nor a function", experiment, "policy=os:abort")


@cases("header", "{'shape': (", "\0\0", "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,)}")
def test_any_header_of_an_npy_file_is_one_line(header, tmp_path):
    text = header.ljust(117).encode() + b"\n"
    (tmp_path / "g.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(96))
    refused(ConfigError, "cannot be read|must hold one row", _gradients, tmp_path / "g.npy", 4)


@cases("content", np.zeros((3, 2)), np.zeros(8), np.array([["a"]] * 8))
def test_gradients_of_the_wrong_shape_are_refused(content, tmp_path):
    np.save(tmp_path / "G.npy", content)
    refused(ConfigError, r"one row of numbers per node, \(8, d\)", _gradients, tmp_path / "G.npy", 8)


# --- run folders ---
def test_a_link_or_a_fifo_in_place_of_the_configuration_is_not_read(tmp_path):
    secret = tmp_path / "secret.yaml"
    secret.write_text("name: secret")
    (folder := tmp_path / "run").mkdir()
    (folder / "config.yaml").symlink_to(secret)
    found = read_folder(folder)
    assert found.config == ""
    assert "config.yaml cannot be read: it is a link, which is not followed" in found.problems
    refused(ConfigError, "it is a link", load_run, folder)
    (folder / "config.yaml").unlink()
    os.mkfifo(folder / "config.yaml")
    assert "not a regular file" in read_folder(folder).problems[0]


def test_a_run_is_not_resumed_through_links_in_place_of_its_records(tmp_path):
    made, other = experiment(), tmp_path / "other"
    run_experiment(made, tmp_path / "run")
    records = next((tmp_path / "run").glob("*/seed-0/metrics.jsonl"))
    records.rename(other)
    before = other.read_bytes()
    for target in (other, Path("/dev/zero")):
        records.unlink(missing_ok=True)
        records.symlink_to(target)
        refused(TrainingError, "it is a link", run_experiment, made, tmp_path / "run", resume=True)
    assert other.read_bytes() == before


@pytest.mark.parametrize(("step", "complete"), [(1, [0]), (5, [0, 1])])
def test_an_interrupted_run_with_two_seeds_is_loaded(step, complete, tmp_path):
    run_until(step, experiment(), tmp_path / "run", seed=1)
    run = load_run(tmp_path / "run")
    assert list(run.results["a"]) == [0, 1]
    assert list(run.summary.table.seeds) == complete
    assert run.curve("a", "accuracy")[1].shape[0] == len(complete)
    assert run.curve("a", "loss")[1].shape == (2, step + 1)


def test_a_sweep_is_resumed_without_repeating_what_is_finished(tmp_path, mixwise):
    plain = small_recipe({"a": MH}, metrics=["accuracy"], **TASK, task=classification())
    recipe = Recipe.model_validate(plain)
    grid = ["lr=0.01,0.1", "task.data.validation=0.2"]
    with pytest.raises(ZeroDivisionError):
        sweep(recipe, grid, tmp_path / "s", Mock(side_effect=[None] * 11 + [ZeroDivisionError]))
    with counted_steps() as taken:
        resumed = sweep(recipe, grid, tmp_path / "s", resume=True)
    assert taken.call_count == 4  # of the second point, from its checkpoint after four steps
    assert resumed == sweep(recipe, grid, tmp_path / "whole")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(plain))
    words = ("sweep", "recipe.yaml", *grid, "--out", "s")
    assert mixwise(*words).returncode == 2
    assert mixwise(*words, "--resume").returncode == 0


def test_disk_errors_end_in_one_line(mixwise, tmp_path, monkeypatch):
    run_until(3, experiment(), tmp_path / "run")

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixwise.storage._fsync", full)
    (tmp_path / "file").touch()
    for words in (
        ("report", "run"), ("run", "run/config.yaml", "--out", "run", "--resume"),
        ("export", "run", "--variant", "a", "--seed", "0"), ("run", "quadratics", "--out", "file/inside"),
        ("run", "quadratics", "--out", "x" * 300), ("graph", f"file:{'x' * 300}"),
    ):  # fmt: skip
        done = mixwise(*words)
        assert done.returncode == 2, words
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert done.stderr.startswith("error: ")


@contextmanager
def idle_connections(count, folder):
    """A watched folder with so many connections that ask for nothing; yields them, the server, and its threads."""
    with served(folder) as server, ExitStack() as closing:
        before = threading.active_count()
        connections = [socket.create_connection(server.server_address) for _ in range(count)]
        idle = [closing.enter_context(connection) for connection in connections]
        yield idle, server, lambda: threading.active_count() - before


def test_an_idle_connection_does_not_hold_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    with idle_connections(20, tmp_path) as (_, _, threads):
        wait_until(lambda: threads() <= 0)


def test_no_more_than_so_many_connections_hold_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(_Handler, "timeout", 600)
    with idle_connections(40, tmp_path) as (idle, server, threads):
        idle[-1].settimeout(60)  # it is closed at once, not after the time limit for idle ones
        assert idle[-1].recv(1) == b""
        assert threads() <= 32
        for connection in idle:
            connection.close()

        def answers():
            with suppress(OSError), urlopen(f"{server.url}data.json", timeout=60) as answer:
                return answer.status == 200

        wait_until(answers)  # when the threads have noticed


def test_the_revision_of_a_dataset_on_the_hub_is_passed_on(tmp_path):
    data = "task.data={kind: hugging-face, options: {name: owner/data, revision: 0123abc}}"
    with (
        patch("huggingface_hub.snapshot_download", return_value=str(tmp_path)) as download,
        patch("mixwise.data.hub._loaded", side_effect=ZeroDivisionError) as loaded,
        pytest.raises(ZeroDivisionError),
    ):
        prepare(experiment(data).runs["a"], 0)
    assert (*download.call_args.args, download.call_args.kwargs["revision"]) == ("owner/data", "0123abc")
    assert loaded.call_args.args[0] == tmp_path


@pytest.mark.parametrize("inner", ["{run}", "{run}/seed-0", "{run}/seed-0/checkpoint", "figures"])
def test_a_run_is_not_resumed_through_links_in_place_of_its_folders(inner, tmp_path):
    made, folder, outside = experiment(), tmp_path / "run", tmp_path / "outside"
    run_experiment(made, folder)
    place = folder / inner.format(run=next(iter(made.runs)))
    shutil.move(place, outside) if place.exists() else outside.mkdir()
    place.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    rule = f"{place} is a link, which is not followed, .* put the folder itself in its place"
    refused(ConfigError, rule, run_experiment, made, folder, resume=True)
    assert sorted(outside.rglob("*")) == before


def test_a_folder_of_a_newer_version_is_refused_with_that_version(tmp_path):
    made, folder = experiment(), tmp_path / "run"
    run_experiment(made, folder)
    config = folder / "config.yaml"
    lines = config.read_text().splitlines()
    assert lines[0].startswith(f"# mixwise {mw.__version__}, ")
    newer = [lines[0].replace(mw.__version__, "10.0.1"), *lines[1:]]
    for changed in (
        [*newer, "color: blue"],
        [line.replace("    steps:", "    color: blue\n    steps:") for line in newer],
    ):
        config.write_text("\n".join(changed) + "\n")
        rule = f"unknown key 'color'.*; it was written by mixwise 10.0.1, and this is {mw.__version__}: pip install --u"
        refused(ConfigError, rule, lambda: plan_experiment(load_recipe(str(config))))
        refused(ConfigError, rule, run_experiment, made, folder, resume=True)
        config.write_text("\n".join([lines[0], *changed[1:]]) + "\n")
        with pytest.raises(ConfigError, match="unknown key 'color'") as error:
            plan_experiment(load_recipe(str(config)))
        assert "written by" not in str(error.value)


def test_a_report_looks_only_where_runs_are(tmp_path):
    """A tree of a million folders beside them is not walked."""
    run_experiment(experiment(), tmp_path / "run")
    deep = tmp_path / "run" / "other" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "seed-7").mkdir()
    with patch("os.scandir", side_effect=os.scandir) as scanned, patch("os.listdir", side_effect=os.listdir) as listed:
        found = read_folder(tmp_path / "run")
        with WatchServer([tmp_path / "run"]) as server:
            server.data()
    assert not any(str(deep) in str(call.args[0]) for call in [*scanned.call_args_list, *listed.call_args_list])
    assert {(run.variant, run.seed) for run in found.runs} == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
