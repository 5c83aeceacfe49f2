"""The memory of a gradient pass or an evaluation besides the rows, measured by one on a single node."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixwise.tasks.buffers import NodeBuffers
from mixwise.tasks.compiled import Compiler
from mixwise.tasks.devices import own_randomness
from mixwise.tasks.gradients import NodeByNode
from mixwise.tasks.module import ModuleTask
from mixwise.tasks.stacked import Stacked

Watching = TypeVar("Watching", bound=AbstractContextManager[Any])
_LOOKED_AT = 8  # batches, of which the largest is taken: texts differ in length


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the bytes of every new tensor, including those of backward passes, until it is freed.

    The temporary memory of a kernel is not counted, nor is anything allocated before.

    >>> with Allocations() as seen:
    ...     x = torch.ones(1000)
    ...     y = x[:10] + 1
    ...     del x
    >>> seen.peak, seen.live
    (4040, 40)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its results that its arguments do not have."""
        kwargs = kwargs or {}
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            name, size = storage._cdata, storage.nbytes()
            if name not in before and name not in self._known:
                self._known.add(name)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, name, size)
        return result

    def _free(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.live -= size


def pass_bytes(task: ModuleTask, nodes: int) -> int:
    """Return the peak of one pass over the batches of this many nodes, in bytes, measured on one of them.

    In a loop, the nodes need no more than one of them at a time; stacked, those of a block need their memory together.
    """
    found = []
    if task.gradients in ("loop", "measure"):
        first = range(min(_LOOKED_AT, task.nodes))
        found.append(_peak(task, "loop", max(first, key=lambda node: task.inputs.one(node, 0)[0].numel())))
    if task.gradients in ("stacked", "measure"):
        together = min(nodes, task.nodes_at_once)
        found.append(together * _peak(task, "stacked", 0, together))
    return max(found)


def evaluation_bytes(task: ModuleTask) -> int:
    """Return the peak of evaluating one model on one batch of the test set, and the averaged model, in bytes."""
    if task.test is None:
        return 0
    x, _ = next(iter(task.test.batches(task.test_batch)))
    return run_copy(task, x, Allocations).peak + 2 * task.layout.dim * task.dtype.itemsize


def run_copy(task: ModuleTask, x: torch.Tensor, watch: Callable[[], Watching]) -> Watching:
    """Run a copy of the model on these inputs in a context that watches its operations; return the context.

    The copy is on the meta device, which takes neither memory nor time, unless an operation needs values.
    """
    try:
        return _forward(task, x, torch.device("meta"), watch())
    except (RuntimeError, NotImplementedError):
        return _forward(task, x, task.device, watch())


def _forward(task: ModuleTask, x: torch.Tensor, device: torch.device, watching: Watching) -> Watching:
    copies: dict[int, Any] = {id(b): b.to(device) for b in task.template.buffers()}
    copies |= {id(p): torch.nn.Parameter(p.to(device), p.requires_grad) for p in task.template.parameters()}
    module = copy.deepcopy(task.template, copies).eval()
    with watching, torch.no_grad(), own_randomness(task.device):
        module(task.inputs.as_input(x.to(device)))
    return watching


def _peak(task: ModuleTask, way: str, node: int, nodes: int = 1) -> int:
    """Return the peak of a pass of one node; stacked, as one of this many."""
    X = task.layout.flatten(task.template)[None]
    pass_ = task.way(way, X, torch.zeros_like(X), NodeBuffers(task.template, 1, task.dtype))
    if isinstance(pass_, NodeByNode):  # operations of compiled code cannot be watched
        pass_.local = replace(pass_.local, compiler=Compiler(wanted=False))
    if isinstance(pass_, Stacked):
        pass_.large = round(pass_.large / nodes)  # a layer that is large for all of them is large for one
    seen = Allocations()
    with seen, torch.enable_grad():
        pass_([node], 0, task.inputs)
    return seen.peak


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Return the storages of all dense tensors; a sparse one, such as a mixing matrix, is small."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
