"""A run needs no more memory at its end than after its first steps."""

import gc
import sys

import psutil
import pytest

from mixwise.experiments import run_experiment
from run_folders import planned

OPTIONS = {
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

    run_experiment(planned({"pairs": {"policy": "pairs"}}, steps=steps, **OPTIONS), tmp_path / "run", measure)
    return found


@pytest.mark.usefixtures("no_pictures")
def test_records_are_not_kept_in_memory(tmp_path):
    warm, end = used_at(tmp_path, 120, 60, sys.getallocatedblocks)
    assert end - warm < 600  # objects, in 60 steps; 60 records have about 1,000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_000_steps(tmp_path):
    warm, end = used_at(tmp_path, 200_000, 20_000, lambda: psutil.Process().memory_info().rss)
    assert end < 1.01 * warm
