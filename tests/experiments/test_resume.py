import errno
import gc
import json
import re
import shutil
import signal
import sys
import weakref
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from builders import refused
from mixwise.errors import ConfigError, MixwiseError, TrainingError
from mixwise.experiments import Recipe, load_run, plan_experiment, run_experiment
from mixwise.experiments.build import build_task
from process_pool import in_processes
from programs import run_with_hook, running, wait_for
from run_folders import classification, counted_steps, power_cuts, small_recipe

pytestmark = [in_processes, pytest.mark.usefixtures("no_pictures")]

STEPS = 24
AWARE = {"kind": "heterogeneity-aware", "period": 3, "smoothing": 0.5, "sketch": {"dim": 20}}
RECIPE = small_recipe(
    {
        "dsgd": {"policy": "metropolis-hastings", "task": {"gradients": "loop"}, "record_every": 2},
        "ha": {
            "policy": {**AWARE, "alternate_with": "metropolis-hastings"},
            "optimizer": {"clip": 0.5},
            "links": {"latency": 0.01, "bandwidth": 1e6},
        },
        "d2": {"algorithm": "d2", "policy": "lazy-metropolis-hastings"},
    },
    seeds=[0, 1], metrics=["accuracy", "consensus_distance"], steps=STEPS, graph="ring:4", task=classification(),
    optimizer={"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    schedule={"warmup": 0.1, "decay_at": [0.6]}, evaluate_every=5, checkpoint_every=7,
)  # fmt: skip
RUNS = [f"{variant}/seed-{seed}" for variant in RECIPE["variants"] for seed in RECIPE["seeds"]]


def experiment(*overrides):
    return plan_experiment(Recipe.model_validate(RECIPE), overrides)


def metrics(folder):
    """The records and the weights of all runs, and the scenes of the report, as bytes."""
    paths = [path for name in ("metrics.jsonl", "weights.jsonl", "scene.json") for path in folder.glob(f"*/*/{name}")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


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
    assert {Path(path).parent for path in metrics(folder)} == set(map(Path, RUNS))
    return folder, snapshots, summary


@pytest.fixture
def copied(uninterrupted, tmp_path):
    """A copy of the folder that was never interrupted."""
    return Path(shutil.copytree(uninterrupted[0], tmp_path / "run"))


# --- the same bits, whenever it was stopped ---
def test_resuming_gives_the_records_of_an_uninterrupted_run(uninterrupted, tmp_path):
    whole, snapshots, summary = uninterrupted
    # Before and after a first checkpoint, around a schedule's change, where runs end and begin, at the very end.
    for at in ("dsgd", 0, 1), ("dsgd", 1, 23), ("ha", 0, 7), ("ha", 1, 15), ("d2", 0, 16), ("d2", 1, 23):
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
        with counted_steps() as taken:
            run_experiment(experiment(), copied, resume=True)
        assert taken.call_count == STEPS - 14
        assert metrics(copied) == metrics(whole)
        steps = [json.loads(line)["step"] for line in (place / "timings.jsonl").read_text().splitlines()]
        assert steps == list(range(STEPS))


def test_only_what_is_missing_is_run_and_stale_temporary_files_are_removed(uninterrupted, copied):
    whole, snapshots, summary = uninterrupted
    files = [path for path in copied.glob("*/seed-*/**/*") if path.is_file()]
    before, seen = [(path.stat().st_mtime_ns, path.read_bytes()) for path in files], []
    for stale in ("scene.json.part", "checkpoint/step-00000025.nodes-0-3-of-4.part"):
        (copied / "d2" / "seed-0" / stale).write_text("cut")
    with counted_steps() as taken:
        again = run_experiment(experiment(), copied, seen.append, resume=True)
    taken.assert_not_called()
    assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in files] == before
    assert not list(copied.rglob("*.part"))
    assert again.to_csv() == summary.to_csv()
    assert len(seen) == len(snapshots)  # progress is shown as if they had run
    shutil.rmtree(copied / "ha" / "seed-1")
    (copied / "summary.csv").unlink()
    with counted_steps() as taken:
        run_experiment(experiment(), copied, resume=True)
    assert taken.call_count == STEPS
    assert metrics(copied) == metrics(whole)
    assert (copied / "summary.csv").read_bytes() == (whole / "summary.csv").read_bytes()


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
    says = r"another experiment.*config\.yaml --out .* --resume"
    refused(ConfigError, says, run_experiment, experiment(change), whole, resume=True)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume in (True, False):
        refused(ConfigError, str(tmp_path), run_experiment, experiment(), tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(uninterrupted, copied, caplog):
    older, newer = sorted((copied / "d2" / "seed-0" / "checkpoint").iterdir())
    newer.write_bytes(b"\0" * newer.stat().st_size)
    run_experiment(experiment(), copied, resume=True)
    assert caplog.messages == [f"the checkpoint {newer} is damaged; the one before it is used"]
    assert metrics(copied) == metrics(uninterrupted[0])
    for file in (older, newer):
        file.write_bytes(b"\0" * 100)
    with pytest.raises(TrainingError, match=r"d2.seed-0.checkpoint.step-00000021.*delete its folder"):
        run_experiment(experiment(), copied, resume=True)
    shutil.rmtree(newer.parent)
    run_experiment(experiment(), copied, resume=True)
    assert metrics(copied) == metrics(uninterrupted[0])


@pytest.mark.parametrize(("kept", "resumes"), [(23, True), (9, False)])
@pytest.mark.parametrize("file", ["metrics.jsonl", "timings.jsonl"])
def test_records_up_to_the_checkpoint_are_required(file, kept, resumes, uninterrupted, copied, caplog):
    """Step 21 has the older of the two checkpoints: a file cut after it costs three steps, before it the run."""
    path = copied / "ha" / "seed-1" / file
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    if resumes:
        run_experiment(experiment(), copied, resume=True)
        assert metrics(copied) == metrics(uninterrupted[0])
        assert caplog.messages == [f"{path} lacks records before the checkpoint of step 24; the one before it is used"]
    else:
        says = f"{path} lacks records before the checkpoint of step 21, and none before it"
        refused(TrainingError, says, run_experiment, experiment(), copied, resume=True)


@pytest.mark.parametrize(("line", "resumes"), [(23, True), (9, False)])
def test_a_flipped_bit_in_a_record_is_never_carried_over(line, resumes, uninterrupted, copied, caplog):
    path = copied / "ha" / "seed-1" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = lines[line - 1].index(b'"loss": ') + len('"loss": 1.')
    lines[line - 1] = lines[line - 1][:at] + bytes([lines[line - 1][at] ^ 1]) + lines[line - 1][at + 1 :]  # a digit
    path.write_bytes(b"".join(lines))
    assert "ha, seed 1: 1 damaged line in metrics.jsonl, skipped" in load_run(copied).missing
    if resumes:
        run_experiment(experiment(), copied, resume=True)
        assert metrics(copied) == metrics(uninterrupted[0])
        says = f"{path} is damaged in line {line}, before the checkpoint of step 24; the one before it is used"
        assert caplog.messages[0] == says
    else:
        says = f"{path} is damaged in line {line}, before the checkpoint of step 21, and none before it"
        refused(TrainingError, says, run_experiment, experiment(), copied, resume=True)


def test_a_power_cut_at_any_moment_leaves_a_folder_that_can_be_resumed(uninterrupted, tmp_path):
    small = experiment("variants=ha", "seeds=0")
    with power_cuts(tmp_path / "run", every=4) as cuts:
        run_experiment(small, tmp_path / "run")
    assert len(cuts) > 5
    whole = metrics(uninterrupted[0])
    for number, cut in enumerate(cuts):
        cut(left := tmp_path / str(number))
        run_experiment(small, left, resume=True)
        assert metrics(left) == {name: whole[name] for name in whole if name.startswith("ha/seed-0")}


def test_a_full_disk_ends_in_one_line_and_leaves_a_run_that_can_be_resumed(uninterrupted, tmp_path):
    """The disk is full again and again, a few writes later each time."""
    folder = tmp_path / "run"
    for writes in (1, 5, 9, 13, 17):
        written = iter(range(writes))

        def full(file, written=written):
            if next(written, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")

        with patch("mixwise.storage._fsync", full):
            says = "No space left on device"
            refused(MixwiseError, says, run_experiment, experiment("variants=ha"), folder, resume=True)
    run_experiment(experiment("variants=ha"), folder, resume=True)
    whole = metrics(uninterrupted[0])
    assert metrics(folder) == {name: whole[name] for name in whole if name.startswith("ha/")}


# --- a run that diverges ---
@pytest.mark.parametrize("variant", ["dsgd", "ha", "d2"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(variant, tmp_path):
    folder = tmp_path / "run"
    diverging = experiment(
        f"variants={variant}", "seeds=0", "schedule.decay_at=[0.6]", "schedule.gamma=1", "checkpoint_every=1",
        "optimizer.lr=1e6", "optimizer.weight_decay=0.1", "optimizer.clip=null", "record_every=1", "steps=100",
    )  # fmt: skip
    (row,) = run_experiment(diverging, folder).rows.values()
    place, step = folder / variant / "seed-0", row.diverged[0].step
    rule = rf"step {step}: .* of node {row.diverged[0].node} .*lower the learning rate"
    assert re.match(rule, row.diverged[0].message)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(step))
    kept = {file: file.read_bytes() for file in (place / "checkpoint").iterdir()}
    assert [file.name[:13] for file in sorted(kept)] == [f"step-{t:08}" for t in (step - 1, step)]
    with counted_steps() as taken:
        assert run_experiment(diverging, folder, resume=True).rows[variant].diverged == row.diverged
    taken.assert_not_called()
    (place / "diverged.json").unlink()  # resuming meets the same step again: the checkpoint is the one before it
    with counted_steps() as taken:
        assert run_experiment(diverging, folder, resume=True).rows[variant].diverged == row.diverged
    taken.assert_called_once()
    assert {path: path.read_bytes() for path in (place / "checkpoint").iterdir()} == kept


def test_an_update_that_is_finite_but_too_large_to_be_squared_names_the_step(tmp_path):
    variants = {"ha": {"policy": {"kind": "heterogeneity-aware"}}}
    large = Recipe.model_validate(small_recipe(variants, steps=60, graph="ring:4", optimizer={"lr": 1e9}))
    # Quadratics in float64: Γ overflows before the loss does, and no warning of NumPy stands above the message.
    says = r"^step \d+: .*lower the learning rate"
    (row,) = run_experiment(plan_experiment(large), tmp_path / "run").rows.values()
    assert re.match(says, row.diverged[0].message)


# --- real processes ---
# It waits for ever after its second checkpoint.
WAITING = run_with_hook('if training.t == 14: Path("waits").touch(); time.sleep(3600)')


def test_ctrl_c_leaves_a_folder_that_can_be_resumed(uninterrupted, mixwise, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    (tmp_path / "waiting.py").write_text(WAITING)
    with running([sys.executable, "waiting.py", "run", "tiny.yaml", "--out", "stopped"], tmp_path) as process:
        wait_for((tmp_path / "waits").exists, [process], tmp_path)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
        assert process.returncode == 130
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last == "stopped; resume with: mixwise run stopped/config.yaml --out stopped --resume"
    assert not (tmp_path / "stopped" / "summary.csv").exists()
    done = mixwise("run", *last.partition("mixwise run ")[2].split())
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "stopped") == metrics(uninterrupted[0])
