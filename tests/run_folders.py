"""A small recipe task, run folders that are read back, and experiments that are stopped on the way."""

import json

import pytest

from mixwise.experiments import run_experiment


def small_recipe(variants, name="tiny", seeds=(0,), window=2, metrics=("loss", "consensus_distance"), **base):
    """A recipe as a dictionary."""
    whole = {"name": name, "seeds": list(seeds), "window": window, "metrics": list(metrics)}
    return {**whole, "base": base, "variants": variants}


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
    """The records of a run."""
    return [json.loads(line) for line in (folder / variant / f"seed-{seed}" / file).read_text("utf-8").splitlines()]


def approximately(records, rel=1e-11):
    """Records that equal others whose numbers differ by rounding: the same sums, in another order."""
    return [pytest.approx(record, rel=rel, abs=1e-20) for record in records]


class StoppedError(Exception):
    """The run was interrupted."""


def stop_at(step, variant=None):
    """A callback that stops a run after the record of a step, of any variant or of one."""

    def check(progress):
        if progress.step == step and variant in (None, progress.variant):
            raise StoppedError

    return check


def run_until(step, experiment, folder, variant=None, resume=False):
    """Run an experiment and stop it."""
    with pytest.raises(StoppedError):
        run_experiment(experiment, folder, stop_at(step, variant), resume)
