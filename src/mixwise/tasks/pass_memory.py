"""What the nodes' passes take besides rows: activations, batches, gradients on their way into G."""

from __future__ import annotations

import copy

import torch

from mixwise.tasks.allocations import Allocations
from mixwise.tasks.buffers import NodeBuffers
from mixwise.tasks.module import ModuleTask
from mixwise.tasks.randomness import own_randomness
from mixwise.tasks.stacked import Stacked

_LOOKED_AT = 8  # batches, of which the largest is taken: texts are not equally long


def pass_bytes(task: ModuleTask, nodes: int) -> int:
    """Bytes at the peak of one pass over the batches of this many nodes, seen in one of one node, or of two.

    One after the other, the nodes take no more than one of them; stacked, they take their memory together.
    """
    ways = ["loop", "stacked"] if task.gradients == "measure" else [task.gradients]
    return max(_one_after_the_other(task) if way == "loop" else _together(task, nodes) for way in ways)


def evaluation_bytes(task: ModuleTask) -> int:
    """Bytes at the peak of judging one model on one batch of the test set, and of the averaged model."""
    if task.test is None:
        return 0
    module = copy.deepcopy(task.template).eval()
    seen = Allocations()
    with seen, torch.no_grad(), own_randomness(task.device):
        x, _ = next(iter(task.test.batches(task.test_batch)))
        module(task.inputs.as_input(x.to(task.device)))
    return seen.peak + 2 * task.layout.dim * task.dtype.itemsize


def buffer_bytes(task: ModuleTask, nodes: int) -> int:
    """Bytes of the buffers of this many modules."""
    return nodes * sum(buffer.numel() * buffer.element_size() for buffer in task.template.buffers())


def _one_after_the_other(task: ModuleTask) -> int:
    first = range(min(_LOOKED_AT, task.nodes))
    largest = max(first, key=lambda node: task.inputs.one(node, 0)[0].numel())
    return _peak(task, "loop", [largest])


def _together(task: ModuleTask, nodes: int) -> int:
    one, two = (_peak(task, "stacked", [0] * number, number / nodes) for number in (1, 2))
    return one + (nodes - 1) * (two - one)


def _peak(task: ModuleTask, way: str, nodes: list[int], share: float = 1.0) -> int:
    """Of a pass of some nodes, which are this share of those of the run."""
    X = task.layout.flatten(task.template).repeat(len(nodes), 1)
    buffers = NodeBuffers(task.template, len(nodes), task.dtype)
    pass_ = task.way(way, X, torch.zeros_like(X), buffers)
    if isinstance(pass_, Stacked):
        pass_.large = round(pass_.large * share)  # a layer that is large for all is large for some
    seen = Allocations()
    with seen, torch.enable_grad():
        pass_(nodes, 0, task.inputs)
    return seen.peak
