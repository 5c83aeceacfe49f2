import csv
import io
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from safetensors.torch import load_file

from builders import cases
from mixwise import cli, terminal
from mixwise.cli import weights_command
from mixwise.experiments import load_recipe, recipe_names
from mixwise.experiments.runner import Progress
from mixwise.graphs import ring
from mixwise.mixing import gram_matrix, minimize_gme
from mixwise.network.world import World
from mixwise.report.table import Cell, Row, Table
from mixwise.terminal import Watch
from run_folders import read_records

QUICK = ["quadratics", "steps=6", "graph=ring:6", "seeds=0-1"]


def test_run_leaves_everything_it_promises(mixwise, tmp_path):
    done, first = mixwise("run", *QUICK, "--out", "first"), tmp_path / "first"
    assert done.returncode == 0, done.stderr
    assert "first/" in done.stdout
    assert "distance to" in done.stdout
    assert {path.name for path in first.iterdir()} >= {"summary.csv", "summary.md", "config.yaml", "figures"}
    assert {path.suffix for path in (first / "figures").iterdir()} == {".png", ".svg"}
    head, *rows = csv.reader((first / "summary.csv").read_text().splitlines())
    metrics = ("distance_to_optimum", "consensus_distance", "gradient_mixing_error")
    assert head == ["variant", *(f"{metric}_{part}" for metric in metrics for part in ("mean", "std")), "diverged"]
    assert [row[0] for row in rows] == ["dsgd-metropolis", "dsgd-optimal-gap", "ha-dsgd", "gme-every-step"]
    metrics, timings = (read_records(first, "gme-every-step", file=file) for file in ("metrics.jsonl", "timings.jsonl"))
    assert not any("second" in key for line in metrics for key in line)  # no wall clock
    assert all(set(line) == {"step", "threads", "compute", "plan", "mix"} for line in timings)
    assert metrics[0]["solve_status"] == "solved"


def test_help_keeps_paragraphs_apart_and_the_version_is_told(mixwise):
    shown = [line.strip() for line in mixwise("run", "--help").stdout.splitlines()]
    assert "Example: mixwise run quadratics steps=100 --seeds 0-4 --out my-run" in shown
    assert "In several processes: mixwise launch --nproc-per-node 4 -- run digits" in shown
    assert "weights" in mixwise().stdout
    assert mixwise("--version").stdout.startswith("mixwise ")


def test_names_and_long_paths_are_shown_as_they_are(mixwise):
    folder = "runs[bold]/" + "a-long-name" * 8
    done = mixwise("run", "quadratics", "variants=dsgd-metropolis", "steps=2", "seeds=0", "--out", folder)
    assert done.returncode == 0
    assert f"records: {folder}/\n" in done.stdout
    assert f"Report: {folder}/report.html\n" in done.stdout
    picture = mixwise("graph", "ring:4", "--out", f"{folder}/ring.svg")
    assert f"picture: {folder}/ring.svg\n" in picture.stdout, picture.stderr


DIGITS = ["run", "digits", "variants=dsgd", "--seeds", "0"]
GME = ["weights", "ring:4", "--scheme", "gme"]


@cases(
    "words, says",
    (["run", "quadratic"], "did you mean quadratics"),
    (["run", "quadratics", "graph=rign:16"], "did you mean ring:16?"),
    (["graph", "rign"], "did you mean ring:N?"),
    (["run", "quadratics", "ha-dsg.policy=uniform"], "unknown key 'ha-dsg'; did you mean ha-dsgd?"),
    (["run", "quadratics", "--resume"], "--resume needs the folder of the interrupted run; name it with --out"),
    (["sweep", "quadratics", "--resume"], "--resume needs the folder of the interrupted run; name it with --out"),
    (["run", "quadratics", "--bogus"], "see mixwise run --help"),
    (["run"], "'recipe'; see mixwise run --help"),
    (["bogus"], "see mixwise --help"),
    ([*DIGITS, "device=gpu7"], "device = 'gpu7'.*cpu"),
    (["graph", "ring:8", "--out", "picture.txt"], ".png"),
    (["weights", "ring:4", "--scheme", "best"], "metropolis-hastings"),
    (["weights", "ring:4", "--scheme", "uniform", "--out", "W.txt"], ".npy"),
    (GME, "--gradients"),
    ([*GME, "--gradients", "nowhere.npy"], "nowhere.npy"),
    (["plan", "ring:6", "--bandwidth", "0"], "--bandwidth 0; give a number above 0"),
    (["plan", "ring:6", "--bandwidth", "nan"], "--bandwidth nan; give a number above 0"),
    (["plan", "ring:6", "--latency", "-1"], "--latency -1; give 0 or more milliseconds"),
    (["plan", "ring:6", "--latency", "nan"], "--latency nan; give 0 or more milliseconds"),
    (["plan", "directed-ring:4"], "mixwise plan needs an undirected graph"),
    (["export", "nowhere", "--variant", "dsgd"], "nowhere holds no checkpoint"),
    (["report", "nowhere"], "there is no folder nowhere; name a folder that mixwise run has made"),
    (["figures", "."], ". holds nothing to draw: config.yaml is missing"),
    (["figures", ".", "--format", "gif"], "--format gif: choose from pdf, png, svg"),
    (["report", ".", "--out", "/proc/nowhere/page.html"], "cannot be written"),
)
def test_a_mistake_is_one_line_with_exit_code_2_and_nothing_written(words, says, mixwise, tmp_path):
    done = mixwise(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert re.search(says, done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(mixwise, tmp_path):
    done = mixwise(*DIGITS, "lr=1e9", "checkpoint_every=2", "record_every=1", "steps=20", "--out", "run")
    assert done.returncode == 2
    assert re.search(r"dsgd, seed \d: diverged: step \d: .*node \d+ .*lower the learning rate", done.stderr)
    assert done.stderr.splitlines()[-1] == "error: every run has diverged; lower the learning rate (lr)"
    assert "dsgd (diverged)" in done.stdout
    assert mixwise("export", "run", "--variant", "dsgd", "--out", "m.safetensors").returncode == 0
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "m.safetensors").values())


def test_recipes_lists_every_recipe(mixwise, tmp_path):
    done = mixwise("recipes")
    assert done.returncode == 0
    for name in ("quadratics", "permutations-four", "gradient-tracking", "torus:ROWSxCOLS", "optimal-gap"):
        assert name in done.stdout
    (tmp_path / "mine.yaml").write_text(mixwise("recipes", "digits").stdout)
    assert load_recipe("mine.yaml") == load_recipe("digits")
    assert "did you mean digits" in mixwise("recipes", "digit").stderr


def test_numbers_are_whole_at_80_columns(mixwise, monkeypatch):
    monkeypatch.setattr("mixwise.terminal.out.width", 80)
    cell = Cell(0.01234, 0.00567)
    metrics = ("accuracy", "accuracy_worst", "accuracy_average_model", "consensus_distance", "loss")
    rows = {name: Row(name, (cell,) * 5) for name in ("dsgd-momentum-optimal-gap", "auto")}
    terminal.out.print(terminal.results_table(Table(metrics, rows, "step 1", (0, 1))))
    shown = mixwise("--version").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert "\n".join(shown).count(str(cell)) == 10
    assert sum("dsgd-momentum-optimal-gap" in line for line in shown) == 3  # three tables
    assert all(word in "\n".join(shown) for metric in metrics for word in metric.split("_"))


def test_nothing_is_cut_at_80_columns(mixwise, monkeypatch):
    monkeypatch.setattr("mixwise.terminal.out.width", 80)
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["recipes"], ["graph", "star:70"]):
        shown = mixwise(*words).stdout
        assert "…\n" not in shown
        assert "...\n" not in shown.partition("Commands:")[2]
    assert max(map(len, shown.splitlines())) <= 80
    assert "lazy-metropolis-hastings  0.014235            0.007143" in shown


def test_graph_describes_and_draws(mixwise, tmp_path):
    done = mixwise("graph", "torus:4x4", "--out", "torus.svg")
    assert done.returncode == 0
    for part in ("16 nodes", "32 edges", "degrees: 4", "diameter: 4", "metropolis-hastings", "optimal-gap", "uniform"):
        assert part in done.stdout
    assert any("\u2801" <= sign <= "\u28ff" for sign in done.stdout)  # Braille dots
    assert (tmp_path / "torus.svg").read_text().startswith("<?xml")
    (tmp_path / "two.txt").write_text("0 1\n2 3\n")
    assert "not connected: 2 components of 2, 2 nodes" in mixwise("graph", "file:two.txt").stdout


def test_weights_are_the_ones_of_the_library(mixwise, tmp_path):
    G = np.random.default_rng(0).standard_normal((8, 5))
    np.save(tmp_path / "G.npy", G)
    for out in ("W.npy", "W.csv"):
        done = mixwise("weights", "ring:8", "--scheme", "gme", "--gradients", "G.npy", "--out", out)
        assert done.returncode == 0
        assert "gradient mixing error" in done.stdout
    W = minimize_gme(gram_matrix(G), ring(8)).W.to_dense()
    assert (np.load(tmp_path / "W.npy") == W).all()
    i, j, weights = np.loadtxt(tmp_path / "W.csv", delimiter=",", skiprows=1, unpack=True)
    assert (weights == W[i.astype(int), j.astype(int)]).all()
    assert weights.sum() == pytest.approx(8)
    assert done.stderr == ""


def test_weights_warns_of_a_graph_that_is_not_connected(mixwise, tmp_path):
    (tmp_path / "two.txt").write_text("0 1\n2 3\n")
    done = mixwise("weights", "file:two.txt", "--scheme", "metropolis-hastings")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: not connected: 2 components of 2, 2 nodes, so no weights let all nodes")


def test_weights_names_the_node_whose_gradient_is_nan(mixwise, tmp_path):
    G = np.ones((4, 3))
    G[2, 1] = np.nan
    np.save(tmp_path / "G.npy", G)
    done = mixwise(*GME, "--gradients", "G.npy")
    assert done.returncode == 2
    assert "G[2, 1] = nan; rows are finite: look for NaN in the gradient or the update of node 2" in done.stderr


@cases("words", ["graph", "ring:4"], ["weights", "ring:4", "--scheme", "optimal-gap"])
def test_a_terminal_shows_which_weights_are_being_computed(words, mixwise, monkeypatch):
    terminal_output = io.StringIO()
    monkeypatch.setattr(weights_command, "err", Console(file=terminal_output, force_terminal=True))
    assert mixwise(*words).returncode == 0
    assert "optimal-gap on 4 nodes" in terminal_output.getvalue()


# --- the line that shows the progress of a run ---
def watched(*records):
    """The lines shown for records (time, variant, step, values)."""
    now = [0.0]
    watch, shown = Watch(clock=lambda: now[0]), []
    for now[0], variant, step, values in records:
        shown.append(watch(Progress(variant, 0, step, 1000, {"loss": 1.0, **values})))
    return shown


def test_the_rate_is_that_of_the_last_seconds():
    records = [(t, "a", 100 * t, {}) for t in range(6)] + [(5 + t, "a", 500 + t, {}) for t in range(1, 9)]
    shown = watched(*records)
    assert shown[0] == "step 1/1000, loss 1"
    assert shown[4].endswith("100 steps/s")
    assert shown[-1].endswith("1.0 steps/s")  # slower since; what was before is forgotten


def test_records_of_a_resumed_run_that_come_at_once_have_no_rate():
    shown = watched((0.0, "a", 10, {}), (1e-4, "a", 20, {}), (0.01, "a", 30, {}))
    assert not any("/s" in line for line in shown)
    assert watched((0.0, "a", 1, {}), (9.0, "a", 1, {}))[-1] == "step 2/1000, loss 1"  # nor the same step twice
    assert watched((0.0, "a", 1, {}), (4.0, "a", 2, {}))[-1].endswith("4.0 s/step")  # slow ones


def test_an_accuracy_stays_until_the_next_one_and_not_beyond_its_run():
    shown = watched((0.0, "a", 1, {"accuracy": 0.5}), (0.0, "a", 2, {}), (0.0, "b", 1, {}))
    assert ["accuracy 50.0%" in line for line in shown] == [True, True, False]


def test_a_new_point_of_a_grid_is_a_new_run():
    watch = Watch(clock=lambda: 0.0)
    low = Progress("a", 0, 3, 10, {"loss": 1.0, "accuracy": 0.5}, point="lr=0.1")
    assert watch(low) == "step 4/10, loss 1, accuracy 50.0%"
    assert watch(replace(low, point="lr=0.3", values={"loss": 1.0})) == "step 4/10, loss 1"


def test_progress_names_the_point_of_the_grid(capfd):
    with terminal.progress_shown(World()) as on_progress:
        on_progress(Progress("a", 2, 9, 10, {"loss": 1.0}, point="lr=0.1"))
    assert capfd.readouterr().err == "a, seed 2, lr=0.1: step 10/10, loss 1\n"


# --- shell completion, and the examples in the help texts ---
COMMANDS = typer.main.get_command(cli.app).commands


@pytest.fixture
def offered(monkeypatch, capfd):
    """The words that bash is offered for the last one of a line."""

    def complete(line):
        monkeypatch.setenv("_MIXWISE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setattr(sys, "argv", ["mixwise"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        return capfd.readouterr().out.split()

    return complete


def test_commands_and_recipes(offered):
    assert set(offered("mixwise ")) == set(COMMANDS)
    assert offered("mixwise run ") == recipe_names()
    assert offered("mixwise sweep cifar10-") == ["cifar10-small", "cifar10-table1"]


def test_keys_variants_graphs_and_schemes(offered):
    assert offered("mixwise run digits ste") == ["steps="]
    assert set(offered("mixwise run quadratics variants=")) == {
        f"variants={name}" for name in load_recipe("quadratics").variants
    }
    assert offered("mixwise run no-such-recipe variants=") == ["variants="]
    assert "torus:" in offered("mixwise graph t")
    assert offered("mixwise weights ring:8 --scheme optimal") == ["optimal-gap"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_that_is_allowed(name):
    lines = re.findall(r"Example: (mixwise .*)", COMMANDS[name].help)
    assert lines, f"mixwise {name} --help has no example"
    for line in lines:
        words = shlex.split(line)
        assert words[1] == name
        COMMANDS[name].make_context(name, words[2:])  # raises if a word or an option is not allowed
