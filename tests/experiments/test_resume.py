import gc
import json
import shutil
import signal
import subprocess
import sys
import time
import weakref
from contextlib import chdir, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from mixwise import cli
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments import Recipe, plan_experiment, run_experiment
from mixwise.experiments.build import build_task
from mixwise.training import Training
from process_pool import in_processes
from programs import Program

pytestmark = [in_processes, pytest.mark.usefixtures("no_pictures")]

STEPS = 24
TASK = {
    "kind": "classification",
    "data": {"kind": "gaussian-mixture", "options": {"classes": 4, "dim": 8, "samples": 200}},
    "partition": {"kind": "by-label", "labels_per_node": 2},
    "model": {"kind": "mlp", "options": {"sizes": [8, 8, 4]}},
    "batch": 4,
}
AWARE = {"kind": "heterogeneity-aware", "period": 3, "smoothing": 0.5, "sketch": {"dim": 20}}
RECIPE = {
    "name": "tiny",
    "seeds": [0, 1],
    "window": 2,
    "metrics": ["accuracy", "consensus_distance"],
    "base": {
        "steps": STEPS,
        "graph": "ring:4",
        "task": TASK,
        "optimizer": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
        "schedule": {"warmup": 0.1, "decay_at": [0.6]},
        "evaluate_every": 5,
        "checkpoint_every": 7,
    },
    "variants": {
        "dsgd": {"policy": "metropolis-hastings", "task": {"gradients": "loop"}, "record_every": 2},
        "ha": {"policy": {**AWARE, "alternate_with": "metropolis-hastings"}, "optimizer": {"clip": 0.5}},
        "d2": {"algorithm": "d2", "policy": "lazy-metropolis-hastings"},
    },
}
RUNS = [f"{variant}/seed-{seed}" for variant in RECIPE["variants"] for seed in RECIPE["seeds"]]


def experiment(*overrides):
    return plan_experiment(Recipe.model_validate(RECIPE), overrides)


def metrics(folder):
    """The records of all runs, as bytes."""
    return {str(path.parent.relative_to(folder)): path.read_bytes() for path in folder.glob("*/seed-*/metrics.jsonl")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, no_pictures):
    """A folder that was never interrupted, and what a kill −9 after each record would have left of it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    kept = tmp_path_factory.mktemp("kills")
    snapshots = {}

    def keep(progress):
        at = progress.variant, progress.seed, progress.step
        snapshots[at] = kept / str(len(snapshots))
        shutil.copytree(folder, snapshots[at])

    summary = run_experiment(experiment(), folder, keep)
    assert sorted(metrics(folder)) == sorted(RUNS)
    return folder, snapshots, summary


@pytest.fixture
def copied(uninterrupted, tmp_path):
    """A copy of the folder that was never interrupted."""
    return Path(shutil.copytree(uninterrupted[0], tmp_path / "run"))


@contextmanager
def counted():
    """How many steps are taken meanwhile."""
    taken = []
    step = Training.step

    def counting(self):
        taken.append(self.t)
        return step(self)

    with patch.object(Training, "step", counting):
        yield taken


# --- the same bits, whenever it was stopped ---
def test_resuming_gives_the_records_of_an_uninterrupted_run(uninterrupted, tmp_path):
    whole, snapshots, summary = uninterrupted
    # Before and after a first checkpoint, around a schedule's change, where runs end and begin, at the very end.
    chosen = [("dsgd", 0, 1), ("dsgd", 0, 9), ("dsgd", 1, 23), ("ha", 0, 0), ("ha", 0, 7), ("ha", 1, 13)]
    chosen += [("ha", 1, 15), ("d2", 0, 3), ("d2", 0, 16), ("d2", 1, 22), ("d2", 1, 23)]
    for at in chosen:
        folder = tmp_path / "-".join(map(str, at))
        shutil.copytree(snapshots[at], folder)
        again = run_experiment(experiment(), folder, resume=True)
        assert metrics(folder) == metrics(whole), at
        assert again.to_csv() == summary.to_csv()
        assert (folder / "summary.csv").read_bytes() == (whole / "summary.csv").read_bytes()


def test_records_that_went_past_the_checkpoint_are_taken_back(uninterrupted, copied):
    whole, snapshots, _ = uninterrupted
    place = copied / "ha" / "seed-1"
    after_14_steps = snapshots["ha", 1, 13] / "ha" / "seed-1" / "checkpoint"
    lines = (place / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for cut in (0, 1, 40, len(lines[18]) - 1):  # the process died while it wrote line 18
        shutil.rmtree(place / "checkpoint")
        shutil.copytree(after_14_steps, place / "checkpoint")
        (place / "metrics.jsonl").write_bytes(b"".join(lines[:18]) + lines[18][:cut])
        with counted() as taken:
            run_experiment(experiment(), copied, resume=True)
        assert taken == list(range(14, STEPS))
        assert metrics(copied) == metrics(whole)
        steps = [json.loads(line)["step"] for line in (place / "timings.jsonl").read_text().splitlines()]
        assert steps == list(range(STEPS))


def test_finished_runs_are_not_run_again(uninterrupted, copied):
    _, snapshots, summary = uninterrupted
    files = [path for path in copied.glob("*/seed-*/**/*") if path.is_file()]
    before, seen = [(path.stat().st_mtime_ns, path.read_bytes()) for path in files], []
    with counted() as taken:
        again = run_experiment(experiment(), copied, seen.append, resume=True)
    assert taken == []
    assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in files] == before
    assert again.to_csv() == summary.to_csv()
    assert len(seen) == len(snapshots)  # progress is shown as if they had run


def test_only_what_is_missing_is_run(uninterrupted, copied):
    whole, _, _ = uninterrupted
    shutil.rmtree(copied / "ha" / "seed-1")
    (copied / "summary.csv").unlink()
    with counted() as taken:
        run_experiment(experiment(), copied, resume=True)
    assert taken == list(range(STEPS))
    assert metrics(copied) == metrics(whole)
    assert (copied / "summary.csv").read_bytes() == (whole / "summary.csv").read_bytes()


def test_an_empty_folder_is_begun(uninterrupted, tmp_path):
    whole, _, _ = uninterrupted
    run_experiment(experiment("variants=dsgd"), tmp_path / "run", resume=True)
    expected = {name: data for name, data in metrics(whole).items() if name.startswith("dsgd/")}
    assert metrics(tmp_path / "run") == expected


def test_one_run_at_a_time_is_in_memory(tmp_path):
    alive = weakref.WeakSet()

    def remember(*words):
        task = build_task(*words)
        alive.add(task)
        return task

    def check(progress):
        gc.collect()
        assert len(alive) == 1

    with patch("mixwise.experiments.build.build_task", remember):
        run_experiment(experiment("steps=2"), tmp_path / "run", check)


# --- what is refused ---
@pytest.mark.parametrize("change", ["steps=25", "seeds=0", "ha.policy.period=4", "variants=dsgd,ha", "dtype=float64"])
def test_the_folder_of_another_experiment_is_refused(change, uninterrupted, tmp_path):
    whole, _, _ = uninterrupted
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"another experiment.*config\.yaml --out .* --resume") as error:
        run_experiment(experiment(change), whole, resume=True)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume in (True, False):
        with pytest.raises(ConfigError, match=str(tmp_path)):
            run_experiment(experiment(), tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_checkpoint_is_named(uninterrupted, copied):
    (file,) = (copied / "d2" / "seed-0" / "checkpoint").iterdir()
    file.write_bytes(b"\0" * 100)
    with pytest.raises(TrainingError, match=r"d2.seed-0.checkpoint.step-00000024.*delete its folder"):
        run_experiment(experiment(), copied, resume=True)
    shutil.rmtree(file.parent)
    run_experiment(experiment(), copied, resume=True)
    assert metrics(copied) == metrics(uninterrupted[0])


# --- a run that diverges ---
@pytest.mark.parametrize("variant", ["dsgd", "ha", "d2"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(variant, tmp_path):
    folder = tmp_path / "run"
    diverging = experiment(
        f"variants={variant}", "seeds=0", "schedule.decay_at=[0.6]", "schedule.gamma=1", "checkpoint_every=1",
        "optimizer.lr=1e6", "optimizer.weight_decay=0.1", "optimizer.clip=null", "record_every=1", "steps=100",
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"^step \d+: .* of node \d .*lower the learning rate") as error:
        run_experiment(diverging, folder)
    step = int(str(error.value).removeprefix("step ").partition(":")[0])
    place = folder / variant / "seed-0"
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(step))
    (file,) = (place / "checkpoint").iterdir()
    kept = file.read_bytes()
    # Resuming meets the same step again: the checkpoint is the one before it.
    with counted() as taken, pytest.raises(TrainingError, match=f"^step {step}: "):
        run_experiment(diverging, folder, resume=True)
    assert taken == [step]
    assert [(path, path.read_bytes()) for path in (place / "checkpoint").iterdir()] == [(file, kept)]


def test_an_update_that_is_finite_but_too_large_to_be_squared_names_the_step(tmp_path):
    recipe = {**RECIPE, "base": {"steps": 60, "graph": "ring:4", "optimizer": {"lr": 1e9}}, "metrics": ["loss"]}
    recipe |= {"seeds": [0], "variants": {"ha": {"policy": {"kind": "heterogeneity-aware"}}}}
    # Quadratics in float64: Γ overflows before the loss does, and no warning of NumPy stands above the message.
    with pytest.raises(TrainingError, match=r"^step \d+: .*lower the learning rate"):
        run_experiment(plan_experiment(Recipe.model_validate(recipe)), tmp_path / "run")


# --- real processes ---
# `mixwise run`, which waits for ever when it comes to step 17 of its second run.
WAITING = """
import time
from pathlib import Path
from mixwise.cli import main
from mixwise.training import Training
step, steps = Training.step, []
def waiting(self):
    steps.append(self.t)
    if steps.count(17) == 2:
        Path("waits").touch()
        time.sleep(3600)
    return step(self)
Training.step = waiting
main()
"""


@contextmanager
def in_the_middle(*words, cwd):
    """A mixwise process in the middle of its second run, that is gone afterwards, whatever happens."""
    (cwd / "waits").unlink(missing_ok=True)
    command, pipe = [sys.executable, "waiting.py", "run", *words], subprocess.PIPE
    process = Program(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
    try:
        while not (cwd / "waits").exists():
            assert process.poll() is None, f"the run ended too early: {process.communicate()[1]}"
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, no_pictures):
    """A recipe file of two runs, and its records without an interruption."""
    folder = tmp_path_factory.mktemp("two")
    two = {**RECIPE, "seeds": [0], "variants": {name: RECIPE["variants"][name] for name in ("dsgd", "ha")}}
    (folder / "two.yaml").write_text(yaml.safe_dump(two))
    (folder / "waiting.py").write_text(WAITING)
    run_experiment(plan_experiment(Recipe.model_validate(two)), folder / "whole")
    return folder


def in_this_process(*words, cwd, capfd):
    """Exit code and what was printed to stderr."""
    with chdir(cwd), patch.object(sys, "argv", ["mixwise", "run", *words]), pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capfd.readouterr().err


def test_kill_9_in_the_middle_then_resume(folder, capfd):
    place = folder / "killed" / "ha" / "seed-0"
    with in_the_middle("two.yaml", "--out", "killed", cwd=folder) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = (place / "metrics.jsonl").read_bytes().count(b"\n")
    assert 14 <= done <= 17  # those until the last checkpoint, and what of the others had reached the disk
    assert not (folder / "killed" / "summary.csv").exists()
    finished = folder / "killed" / "dsgd" / "seed-0" / "metrics.jsonl"
    untouched = finished.stat().st_mtime_ns

    status, err = in_this_process("two.yaml", "--out", "killed", "--resume", "steps=9", cwd=folder, capfd=capfd)
    assert status == 2
    assert err.startswith("error: killed holds another experiment")
    assert err.count("\n") == 1

    with counted() as taken:
        status, err = in_this_process("two.yaml", "--out", "killed", "--resume", cwd=folder, capfd=capfd)
    assert status == 0, err
    assert taken == list(range(14, STEPS))
    assert metrics(folder / "killed") == metrics(folder / "whole")
    assert finished.stat().st_mtime_ns == untouched
    assert (folder / "killed" / "summary.csv").read_bytes() == (folder / "whole" / "summary.csv").read_bytes()


def test_ctrl_c_leaves_a_folder_that_can_be_resumed(folder, capfd):
    with in_the_middle("two.yaml", "--out", "stopped", cwd=folder) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last == "stopped; resume with: mixwise run stopped/config.yaml --out stopped --resume"
    assert out == ""
    assert not (folder / "stopped" / "summary.csv").exists()

    words = last.partition("mixwise run ")[2].split()
    status, err = in_this_process(*words, cwd=folder, capfd=capfd)
    assert status == 0, err
    assert metrics(folder / "stopped") == metrics(folder / "whole")
