"""The number of threads for a run: small work is done fastest by one, above all on a busy machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mixwise.protocols import Task
from mixwise.tasks import ModuleTask, QuadraticTask
from mixwise.tasks.pass_flops import pass_flops

FLOPS_PER_THREAD = 5e7
"""Floating-point operations of a pass for which another thread pays: some milliseconds of one core."""
_FLOPS_PER_NUMBER = 10  # of the optimizer's step and the mixing


def suitable_threads(task: Task, X: torch.Tensor) -> int:
    """Return how many threads the steps of a run are worth, at most as many as torch uses now.

    The number depends on shapes alone, so that a resumed run computes as before. If OMP_NUM_THREADS is set, or the work
    of a task is not known, torch's number stays.
    """
    now = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or X.device.type != "cpu" or not isinstance(task, ModuleTask | QuadraticTask):
        return now
    flops = pass_flops(task, len(X)) if isinstance(task, ModuleTask) else 4.0 * X.numel() * X.shape[1]
    return min(now, 1 + int((flops + _FLOPS_PER_NUMBER * X.numel()) / FLOPS_PER_THREAD))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch use this many threads inside, and as many as before afterward."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
