"""The memory that a task takes besides rows: activations, batches, gradients on their way into G, buffers."""

from __future__ import annotations

import copy

import torch

from mixwise.tasks.allocations import Allocations
from mixwise.tasks.buffers import NodeBuffers
from mixwise.tasks.module import ModuleTask
from mixwise.tasks.randomness import own_randomness
from mixwise.tasks.stacked import Stacked

_LOOKED_AT = 8  # batches, of which the largest is taken: texts differ in length


def pass_bytes(task: ModuleTask, nodes: int) -> int:
    """The peak of one pass over the batches of this many nodes, in bytes, measured on one of them.

    In a loop, the nodes take no more than one of them at a time; stacked, they take their memory together.
    """
    found = []
    if task.gradients in ("loop", "measure"):
        first = range(min(_LOOKED_AT, task.nodes))
        found.append(_peak(task, "loop", max(first, key=lambda node: task.inputs.one(node, 0)[0].numel())))
    if task.gradients in ("stacked", "measure"):
        found.append(nodes * _peak(task, "stacked", 0, nodes))
    return max(found)


def evaluation_bytes(task: ModuleTask) -> int:
    """The peak of evaluating one model on one batch of the test set, and the averaged model, in bytes."""
    if task.test is None:
        return 0
    module = copy.deepcopy(task.template).eval()
    seen = Allocations()
    with seen, torch.no_grad(), own_randomness(task.device):
        x, _ = next(iter(task.test.batches(task.test_batch)))
        module(task.inputs.as_input(x.to(task.device)))
    return seen.peak + 2 * task.layout.dim * task.dtype.itemsize


def _peak(task: ModuleTask, way: str, node: int, nodes: int = 1) -> int:
    """The peak of a pass of one node; stacked, as one of this many."""
    X = task.layout.flatten(task.template)[None]
    pass_ = task.way(way, X, torch.zeros_like(X), NodeBuffers(task.template, 1, task.dtype))
    if isinstance(pass_, Stacked):
        pass_.large = round(pass_.large / nodes)  # a layer that is large for all of them is large for one
    seen = Allocations()
    with seen, torch.enable_grad():
        pass_([node], 0, task.inputs)
    return seen.peak
