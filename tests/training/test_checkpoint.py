import json
import os
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import lr_scheduler

from builders import mixture_task, refused, sgd, simulated
from mixwise.algorithms import D2
from mixwise.errors import TrainingError
from mixwise.graphs import ring
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.models import seeded
from mixwise.policies import Alternating, Fixed, HeterogeneityAware, RandomChoice
from mixwise.sketch import CountSketch
from mixwise.tasks import random_quadratics
from mixwise.training import factor, records
from mixwise.training.checkpoint import keep_only, load_checkpoint, newest_step, save_checkpoint
from planning import assert_same_state
from run_folders import power_cuts

NODES = 6
GRAPH = ring(NODES)
NESTEROV = sgd(0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
MH = metropolis_hastings(GRAPH)


def module_task(dtype=torch.float32):
    """Dropout, two groups, data in a random order: everything that a run can depend on."""

    def module():
        return seeded(lambda: nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 4)), 0)

    groups = lambda name, parameter: int(parameter.ndim < 2)  # noqa: E731
    return mixture_task(module, NODES, batch=5, group_of=groups, dtype=dtype)


def quadratics():
    return random_quadratics(NODES, dim=5, noise=0.3)


def adam(blocks):
    groups = [{"params": [block], "weight_decay": 0.1 * (i == 0)} for i, block in enumerate(blocks)]
    return torch.optim.AdamW(groups, lr=0.01)


def optimizer(name, **options):
    return lambda blocks: getattr(torch.optim, name)(blocks, **options)


def aware(**options):
    settings = {"period": 3, "sketch": CountSketch(20, seed=4), "smoothing": 0.5, "alternate_with": MH, **options}
    return HeterogeneityAware(settings.pop("period"), **settings)


def warm_up_and_decay(o):
    return lr_scheduler.LambdaLR(o, factor(16, warmup=0.3, decay_at=(0.7,)))


def one_cycle(o):  # it moves the momentum as well
    return lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=30)


def in_sequence(o):
    warm_up = lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5)
    return lr_scheduler.SequentialLR(o, [warm_up, lr_scheduler.CosineAnnealingLR(o, 20)], milestones=[5])


def milestones(o):
    return lr_scheduler.MultiStepLR(o, [4, 9], gamma=0.3)


# What differs from D-SGD with Nesterov's momentum on a module; other policies are tested in test_local_steps.py.
LAZY = {"policy": Fixed(lazy(MH)), "algorithm": D2()}
CASES = {
    "nesterov": {},
    "adam": {"optimizer": adam},
    "float64": {"task": lambda: module_task(torch.float64)},
    "aware": {"policy": aware()},
    "aware from zero": {"policy": aware(), "scheduler": warm_up_and_decay},
    "alternating": {"policy": Alternating([aware(alternate_with=None), MH])},
    "random": {"task": quadratics, "policy": RandomChoice([MH, lazy(MH)]), "optimizer": optimizer("SGD", lr=1e-3)},
    "d2": LAZY,
    "d2, schedule and clip": {**LAZY, "scheduler": warm_up_and_decay, "clip": 0.5},
    "schedule and clip": {"policy": aware(), "optimizer": adam, "scheduler": warm_up_and_decay, "clip": 0.5},
    "one cycle, sgd": {"scheduler": one_cycle},
    "one cycle, adam": {"optimizer": adam, "scheduler": one_cycle},
    "sequence": {"scheduler": in_sequence},
    "milestones": {"scheduler": milestones},
    "rmsprop": {"task": quadratics, "optimizer": optimizer("RMSprop", lr=1e-2, momentum=0.5, centered=True)},
    **{name: {"task": quadratics, "optimizer": optimizer(name, lr=1e-3)} for name in ("Adagrad", "NAdam", "ASGD")},
    "rprop": {"task": quadratics, "optimizer": optimizer("Rprop", lr=1e-2)},
}


def make(case):
    options = {"task": module_task, "policy": MH, "optimizer": NESTEROV, **CASES[case]}
    return simulated(graph=GRAPH, **{**options, "task": options["task"]()})


def advance(training, steps):
    """The records of the next steps, as JSON."""
    return [record.to_json() for record in records(training, training.t + steps, evaluate_every=10)]


def saved(case, steps, folder):
    """A run after some steps, which it has saved."""
    training = make(case)
    if steps:
        advance(training, steps)
    save_checkpoint(training, folder)
    return training


def loaded(case, folder):
    training = make(case)
    load_checkpoint(training, folder)
    return training


# --- the same bits ---


@pytest.mark.numerics
@pytest.mark.parametrize(
    ("case", "before"), [*((case, 7) for case in CASES), ("aware", 0), ("aware", 1), ("d2", 1), ("adam", 4)]
)
def test_a_run_that_is_saved_and_all_that_restore_it_continue_with_the_bits_of_one_that_is_not(case, before, tmp_path):
    """All: a new run, one restored from what that has saved before its first step, and one that was elsewhere."""
    first, second = tmp_path / "first", tmp_path / "second"
    unsaved, saving = make(case), saved(case, before, first)
    if before:
        advance(unsaved, before)
    expected, new = advance(unsaved, 5), loaded(case, first)
    save_checkpoint(new, second)
    assert (new.t, header(second)) == (before, header(first))
    load_checkpoint(unsaved, first)
    for training in (saving, new, loaded(case, second), unsaved):
        assert advance(training, 5) == expected
        assert torch.equal(training.X, saving.X)
        assert_same_state(training, saving)


# --- the file ---


def the_file(folder):
    """The one file of a checkpoint that one process has written."""
    (path,) = folder.iterdir()
    return path


def header(folder):
    """The JSON header of a safetensors file, read by its published layout: a length, the header, bare bytes."""
    data = the_file(folder).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def test_a_checkpoint_is_tensors_and_json_and_nothing_is_ever_unpickled(tmp_path, monkeypatch):
    path = tmp_path / "c"

    def never(*args, **options):
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    monkeypatch.setattr(torch, "save", never)
    monkeypatch.setattr(torch, "load", never)
    saved("schedule and clip", 4, path)
    load_checkpoint(make("schedule and clip"), path)
    content = header(path)
    assert json.loads(content.pop("__metadata__")["mixwise"])["values"]["shared/t"] == 4
    kept = {"rows/X", "driver/policy/shared/gram", "optimizer/rows/0.exp_avg", "optimizer/rows/1.exp_avg_sq"}
    assert kept <= set(content)
    assert all(entry["dtype"] in ("F32", "F64", "I64") for entry in content.values())


def saved_three_times(path):
    """The files that are left, the oldest first."""
    training = make("nesterov")
    for _ in range(3):
        advance(training, 1)
        save_checkpoint(training, path)
    return sorted(path.iterdir())


def flipped(path, at):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.3, 0.6, 0.999])
def test_one_flipped_bit_anywhere_is_noticed_and_the_checkpoint_before_is_used(share, tmp_path, caplog):
    older, newer = saved_three_times(path := tmp_path / "c")  # the last two are kept
    flipped(newer, int(share * newer.stat().st_size))
    assert loaded("nesterov", path).t == 2
    assert caplog.messages == [f"the checkpoint {newer} is damaged; the one before it is used"]
    flipped(older, int(share * older.stat().st_size))
    refused(TrainingError, f"{older} is damaged, and none before it.*delete its folder", loaded, "nesterov", path)


def rewrite(path, name="", value=None):
    """Write a checkpoint as 0.2.0 did, without a checksum, and with another value of this name."""
    file, tensors = the_file(path), load_file(the_file(path))
    content = json.loads(header(path)["__metadata__"]["mixwise"])
    del content["sha256"]
    if name:
        place, _, last = name.rpartition(".")
        (content["values"][place]["json"] if place else content["values"])[last] = value
    save_file(tensors, file, {"mixwise": json.dumps(content)})


def test_a_checkpoint_of_0_2_0_has_no_checksum_and_is_read(tmp_path):
    training = saved("aware", 4, path := tmp_path / "c")
    rewrite(path)
    assert advance(loaded("aware", path), 5) == advance(training, 5)


@pytest.mark.parametrize("value", [[4], "4", 4.5, -4, None, True])
@pytest.mark.parametrize("name", ["shared/t", "driver/shared/steps", "driver/shared/traffic.parameters"])
def test_an_edited_position_is_one_line(name, value, tmp_path):
    saved("aware", 4, path := tmp_path / "c")
    rewrite(path, name, value)
    refused(TrainingError, r"does not fit this run .*in place of a count.*delete its folder", loaded, "aware", path)


def test_a_power_cut_at_any_moment_leaves_a_checkpoint(tmp_path):
    """After the sync of the folder that follows the renaming, the new one; before it, the one before."""
    path, training = tmp_path / "c", make("nesterov")
    steps = []
    with power_cuts(path) as cuts:
        for _ in range(4):
            advance(training, 1)
            save_checkpoint(training, path)
    for number, cut in enumerate(cuts):
        cut(left := tmp_path / str(number))
        steps.append(newest_step(left) or 0)
        if steps[-1]:
            assert loaded("nesterov", left).t == steps[-1]
    assert steps == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_a_save_that_fails_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    training = saved("nesterov", 2, path := tmp_path / "c")
    old = the_file(path).read_bytes()
    advance(training, 1)

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        refused(TrainingError, r"c.step-00000003.*No space left", save_checkpoint, training, path)
    assert the_file(path).read_bytes() == old
    save_checkpoint(training, path)
    assert loaded("nesterov", path).t == 3


def test_folders_that_are_not_there_are_named(tmp_path):
    gone, training = tmp_path / "gone" / "c", make("nesterov")
    refused(TrainingError, r"gone.c.step-00000000.* cannot be written", save_checkpoint, training, gone)
    refused(TrainingError, "c holds no complete checkpoint", load_checkpoint, training, gone)


# --- what does not fit ---


def cut(share):
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


BROKEN = {
    **{f"cut at {share}": cut(share) for share in (0.0, 0.001, 0.2, 0.9, 0.999)},
    "tensors": lambda path: save_file({"weight": torch.zeros(3)}, path),
    "metadata": lambda path: save_file({"X": torch.zeros(3)}, path, {"mixwise": "no JSON"}),
    "a list": lambda path: save_file({"X": torch.zeros(3)}, path, {"mixwise": "[1, 2]"}),
    "text": lambda path: path.write_text("not a checkpoint"),
    "pickled": lambda path: torch.save({"X": torch.zeros(3)}, path),
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN)
def test_a_truncated_or_foreign_file_is_named(spoil, tmp_path):
    saved("adam", 1, tmp_path)
    path = the_file(tmp_path)
    spoil(path)
    refused(TrainingError, path.name, load_checkpoint, make("adam"), tmp_path)


@pytest.mark.parametrize("other", ["float64", "random"])
def test_rows_of_another_shape_or_precision_are_refused(other, tmp_path):
    saved(other, 0, path := tmp_path / "other")
    refused(TrainingError, r"other.*expected \(6, 160\) of torch\.float32", load_checkpoint, make("nesterov"), path)


def test_what_a_shared_file_system_does_not_show_yet_is_not_removed(tmp_path, monkeypatch):
    training = saved("nesterov", 2, tmp_path / "c")
    advance(training, 1)
    with monkeypatch.context() as patched:
        patched.setattr("mixwise.training.checkpoint._complete", lambda folder: {})  # the files of others come late
        save_checkpoint(training, tmp_path / "c")
        keep_only(tmp_path / "c", 3)
    assert newest_step(tmp_path / "c") == 3
