"""kill −9 at random moments of a small recipe; `--resume` must give the same records.

    python tests/kill_recipes.py --kills 200

Each run is a forked process with its own folder. It is killed and resumed until it finishes; then its records, weights
and scenes are compared byte by byte with those of a run that was never killed.
"""

import argparse
import logging
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from mixwise.experiments import run_experiment
from run_folders import no_pictures, planned

VARIANTS = {
    "plain": {"policy": "metropolis-hastings", "optimizer": {"momentum": 0.9}},
    "aware": {"policy": {"kind": "heterogeneity-aware", "period": 3, "smoothing": 0.5, "sketch": {"dim": 5}}},
    "d2": {"policy": "lazy-metropolis-hastings", "algorithm": "d2", "record_every": 2},
}
OPTIONS = {"steps": 12, "graph": "ring:4", "optimizer": {"lr": 0.005}, "checkpoint_every": 2, "evaluate_every": 3}
COMPARED = ("metrics.jsonl", "weights.jsonl", "scene.json", "config.yaml")


def run(folder):
    """Run the recipe, or resume it."""
    experiment = planned(VARIANTS, seeds=[0, 1], metrics=["loss", "distance_to_optimum"], **OPTIONS)
    with no_pictures():
        run_experiment(experiment, folder, resume=folder.exists())


def started(folder):
    """Start or resume the run in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=run, args=[folder])
    process.start()
    return process


def content(folder):
    """The files that must be the same."""
    return {str(p.relative_to(folder)): p.read_bytes() for name in COMPARED for p in sorted(folder.rglob(name))}


def killed_run(folder, draw, longest, counts):
    """Kill and resume a run until it has finished; `counts` are added to."""
    while True:
        process = started(folder)
        process.join(draw.uniform(0, longest))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0, f"{folder}: the run failed with status {process.exitcode}"
            return
        counts["kills"] += 1
        counts["while a file was written"] += any(folder.rglob("*.part"))


def campaign(kills, seed=0):
    """Runs until there were so many kills; returns the counts."""
    draw, counts = random.Random(seed), {"kills": 0, "while a file was written": 0, "runs": 0}
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        run(whole := Path(scratch) / "whole")  # here, so that the forked processes have everything imported
        start = time.monotonic()
        (again := started(Path(scratch) / "again")).join()
        assert again.exitcode == 0
        longest = time.monotonic() - start
        while counts["kills"] < kills:
            folder = Path(scratch) / "run"
            killed_run(folder, draw, longest, counts)
            counts["runs"] += 1
            assert content(folder) == content(whole), f"run {counts['runs']} of seed {seed} differs"
            assert not list(folder.rglob("*.part")), "a temporary file is left"
            shutil.rmtree(folder)
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    logging.disable(logging.WARNING)  # about the locks that killed runs leave
    found = campaign(given.kills, given.seed)
    print(", ".join(f"{count} {name}" for name, count in found.items()) + ": all records are the same")
    sys.exit(0)
