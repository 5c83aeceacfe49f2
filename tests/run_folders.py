"""A small recipe task, run folders that are read back, and experiments that are stopped on the way."""

import itertools
import json
import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from mixwise.experiments import Recipe, load_recipe, plan_experiment, run_experiment, runner
from mixwise.report.watch import WatchServer
from mixwise.storage import sealed, unsealed
from mixwise.training import Training


def small_recipe(variants, name="tiny", seeds=(0,), window=2, metrics=("loss", "consensus_distance"), **base):
    """A recipe as a dictionary."""
    whole = {"name": name, "seeds": list(seeds), "window": window, "metrics": list(metrics)}
    return {**whole, "base": base, "variants": variants}


def planned(variants, *overrides, **options):
    """The experiment of such a recipe."""
    return plan_experiment(Recipe.model_validate(small_recipe(variants, **options)), overrides)


def recipe_run(*overrides, recipe="quadratics", variant="dsgd-metropolis"):
    """One variant of a recipe that comes with mixwise."""
    return plan_experiment(load_recipe(recipe), [f"variants={variant}", *overrides]).runs[variant]


def classification(dim=8, hidden=8, classes=4, samples=200, **options):
    """The task of a recipe: a dense network on a mixture of Gaussians."""
    return {
        "kind": "classification",
        "data": {"kind": "gaussian-mixture", "options": {"classes": classes, "dim": dim, "samples": samples}},
        "partition": {"kind": "by-label", "labels_per_node": 2},
        "model": {"kind": "mlp", "options": {"sizes": [dim, hidden, classes]}},
        "batch": 4,
        **options,
    }


def read_records(folder, variant, seed=0, file="metrics.jsonl"):
    """The records of a run, without their checksums."""
    lines = (folder / variant / f"seed-{seed}" / file).read_bytes().splitlines()
    return [json.loads(unsealed(line)) for line in lines]


def approximately(records, rel=1e-11):
    """Records that equal others whose numbers differ by rounding: the same sums, in another order."""
    return [pytest.approx(record, rel=rel, abs=1e-20) for record in records]


@contextmanager
def no_pictures():
    """Experiments leave no figures and no report: they take seconds, and few tests look at them."""
    with patch.object(runner, "save_curves"), patch.object(runner, "save_page"):
        yield


@contextmanager
def power_cuts(folder, every=1):
    """Meanwhile, collect what a power cut would leave of a folder, after every so many syncs.

    A file has the content of its last sync, a folder the names of its last sync. Yields a list of functions, each of
    which writes what is left to another folder.
    """
    contents, names, cuts, count = {}, {}, [], itertools.count(1)

    def remember(file):
        number, place = os.fstat(file).st_ino, Path(os.readlink(f"/proc/self/fd/{file}"))
        if place.is_dir():
            names[number] = {each.name: (each.stat().st_ino, each.is_dir()) for each in place.iterdir()}
        else:
            contents[number] = place.read_bytes()
        if next(count) % every == 0 and folder.exists():
            root = folder.stat().st_ino
            cuts.append(partial(_write, root, dict(contents), {key: dict(value) for key, value in names.items()}))

    with patch("mixwise.storage._fsync", remember):
        yield cuts


def _write(number, contents, names, target):
    target.mkdir()
    for name, (inner, is_folder) in names.get(number, {}).items():
        if is_folder:
            _write(inner, contents, names, target / name)
        else:
            (target / name).write_bytes(contents.get(inner, b""))


@contextmanager
def served(folder):
    """A server of the report of a run folder, answering in a thread."""
    with WatchServer([folder]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def wait_until(holds, seconds=30.0):
    """Wait until a function returns something true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


class StoppedError(Exception):
    """The run was interrupted."""


def stop_at(step, variant=None, seed=None):
    """A callback that stops a run after the record of a step, of any variant and seed or of one."""

    def check(progress):
        if progress.step == step and variant in (None, progress.variant) and seed in (None, progress.seed):
            raise StoppedError

    return check


def run_until(step, experiment, folder, variant=None, seed=None, resume=False):
    """Run an experiment and stop it."""
    with pytest.raises(StoppedError):
        run_experiment(experiment, folder, stop_at(step, variant, seed), resume)


def counted_steps():
    """A context with a mock that counts the steps taken in it."""
    return patch.object(Training, "step", autospec=True, side_effect=Training.step)


def made_folder(folder, runs, scenes=None, weights=(), **head):
    """A run folder with these records, one list of them per seed of each variant; `head` is for config.yaml."""
    seeds = list(range(max(map(len, runs.values()))))
    config = {"name": "made", "metrics": ["loss"], "seeds": seeds, "variants": {name: {} for name in runs}} | head
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(config))
    for variant, found in runs.items():
        for seed, records in enumerate(found):
            place = folder / variant / f"seed-{seed}"
            place.mkdir(parents=True)
            (place / "metrics.jsonl").write_text(_json_lines(records))
            if scenes is not None:
                (place / "scene.json").write_text(json.dumps(scenes[variant]))
                (place / "weights.jsonl").write_text(_json_lines(weights))
    return folder


def _json_lines(records):
    return "".join(sealed(json.dumps(record)) + "\n" for record in records)
