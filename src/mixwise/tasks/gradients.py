"""The gradients of all nodes, node after node; and the choice between this and all at once (`stacked.py`).

Legend: X, G (m, d); losses (m,); a batch x (b, …), y (b,) per node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, TypeAlias

import torch
from torch import nn

from mixwise.data import Dataset
from mixwise.errors import TrainingError
from mixwise.seeding import stream
from mixwise.tasks.buffers import NodeBuffers, collect, set_buffers
from mixwise.tasks.compiled import Compiler, loss_of
from mixwise.tasks.devices import REMEDY, broken_bfloat16, own_randomness
from mixwise.tasks.inputs import Inputs
from mixwise.tasks.rows import RowLayout

Gradients: TypeAlias = Literal["auto", "measure", "loop", "stacked"]
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Pass: TypeAlias = Callable[[Sequence[int], int, Inputs], torch.Tensor]  # (nodes, step, inputs) -> losses (m,)

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_DENSE = (nn.Linear, nn.LayerNorm, nn.Embedding)  # where stacking was measured to pay
_REPEATS = 3


@dataclass(frozen=True)
class LocalPass:
    """The forward and backward pass of one node.

    Args:
        template: a module like the nodes'.
        layout: the columns of its parameters in a row.
        loss: of outputs and labels, averaged over the batch.
        seed: of the draws of random layers.
        accumulate: the number of pieces that a batch is computed in, one after the other. The gradients of a batch are
            the mean over its samples, so those of the pieces are averaged by their sizes.
        autocast: torch.bfloat16: products in this precision, sums and parameters in that of the rows.
        compiler: calls the forward pass of a module and its loss.
    """

    template: nn.Module
    layout: RowLayout
    loss: Loss
    seed: int
    accumulate: int = 1
    autocast: torch.dtype | None = None
    compiler: Compiler = field(default_factory=lambda: Compiler(wanted=False))

    def check(self, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Reject options that would not give the gradients of the batch."""
        if not isinstance(batch, Integral) or batch < 1:
            raise TrainingError(f"batch = {batch!r}; give a whole number of at least 1, such as batch=32")
        if not 1 <= self.accumulate <= batch:
            raise TrainingError(f"accumulate = {self.accumulate} pieces of a batch of {batch}; use 1 to {batch}")
        parts = self.template.named_modules()
        norm = next((name for name, part in parts if isinstance(part, _BATCH_NORMS) and part.training), None)
        if self.accumulate > 1 and norm is not None:
            found = f"accumulate = {self.accumulate} would change the statistics of the batch normalization {norm!r}"
            raise TrainingError(f"{found}; use a norm of single samples (group, layer, EvoNorm-S0), or accumulate=1")
        if self.autocast is None:
            return
        if self.autocast != torch.bfloat16:
            raise TrainingError(f"autocast = {self.autocast} loses small gradients; use torch.bfloat16")
        if dtype != torch.float32:
            raise TrainingError(f"autocast shortens products of torch.float32, not of {dtype}; drop one of the two")
        if device.type == "cpu" and (killed := broken_bfloat16()) is not None:
            found = f"autocast = {self.autocast}: bfloat16 products kill a process on this CPU ({killed})"
            raise TrainingError(f"{found}, which announces AMX instructions that it does not execute; {REMEDY}")

    def chosen(self, gradients: Gradients, data: Dataset) -> Literal["measure", "loop", "stacked"]:
        """Return how gradients are computed, as far as it is known before the first batch."""
        if gradients not in ("auto", "measure", "loop", "stacked"):
            raise TrainingError(f'gradients = {gradients!r}; choose "auto", "measure", "loop" or "stacked"')
        reason = self._refusal(data)
        if gradients == "stacked" and reason is not None:
            raise TrainingError(f'gradients = "stacked" cannot run {reason}; use gradients = "loop"')
        if reason is not None:
            return "loop"
        if gradients != "auto":
            return gradients
        layers = [part for part in self.template.modules() if next(part.parameters(recurse=False), None) is not None]
        dense = all(isinstance(part, _DENSE) for part in layers) and next(self.template.buffers(), None) is None
        return "stacked" if dense else "loop"

    def _refusal(self, data: Dataset) -> str | None:
        """Return why "stacked" would give another result, as far as options, data and layers show."""
        if self.compiler.active:
            return "with compile = True"
        if self.accumulate > 1 or self.autocast is not None:
            return f"with accumulate = {self.accumulate} and autocast = {self.autocast}"
        if not isinstance(data.x, torch.Tensor):
            return f"{data.name}, which is read piece by piece"
        for name, part in self.template.named_modules():
            if isinstance(part, _BATCH_NORMS):
                return f"the batch normalization {name!r}, whose statistics change in place"
            if isinstance(part, _RANDOM):
                return f"the random layer {name!r}, whose draws must depend on the node alone"
        return None


class NodeByNode:
    """One module per node: its parameters are views of a row of X, their gradients of a row of G.

    Args:
        local: the pass of a node.
        X, G: the rows, and the place of their gradients.
        buffers: of the nodes' modules.
    """

    def __init__(self, local: LocalPass, X: torch.Tensor, G: torch.Tensor, buffers: NodeBuffers) -> None:
        self.local, self.G = local, G
        self._modules = [local.layout.module(local.template, row) for row in X]
        self.bind(X)
        self._places = [set_buffers(module, buffers.views(i)) for i, module in enumerate(self._modules)]
        self._frozen = [p for p in local.template.parameters() if not p.requires_grad]  # one for all nodes
        self._versions = self._frozen_versions()

    def bind(self, X: torch.Tensor) -> None:
        """Use these rows from now on."""
        for module, row, gradient in zip(self._modules, X, self.G, strict=True):
            self.local.layout.bind(module, row, gradient)

    def __call__(self, nodes: Sequence[int], step: int, inputs: Inputs) -> torch.Tensor:
        """Return the losses (m,)."""
        self.G.zero_()  # backward adds to the views of G
        losses = torch.empty(len(nodes), dtype=self.local.layout.dtype, device=self.G.device)
        with own_randomness(self.G.device) as reseed:
            for i, (node, (x, y)) in enumerate(zip(nodes, inputs.each(nodes, step), strict=True)):
                reseed(stream(self.local.seed, "layers", node, step))
                losses[i] = self._passed(self._modules[i], x, y)
                collect(self._places[i])
        if self._frozen_versions() != self._versions:
            rule = "register a value that changes without being trained as a buffer"
            raise TrainingError(f"the module changes a frozen parameter, which all nodes share; {rule}")
        return losses

    def _passed(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of one batch, and add its gradients to those of the module's parameters."""
        pieces, autocast, compiler = self.local.accumulate, self.local.autocast, self.local.compiler
        if pieces == 1 and autocast is None:
            loss = compiler(loss_of, module, self.local.loss, x, y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        total = torch.zeros((), dtype=self.local.layout.dtype, device=y.device)
        for part, labels in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
            with torch.autocast(y.device.type, autocast, enabled=autocast is not None):
                loss = compiler(loss_of, module, self.local.loss, part, labels) * (len(labels) / len(y))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _frozen_versions(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._frozen]


def faster(loop: Pass, stacked: Pass, nodes: Sequence[int], step: int, inputs: Inputs) -> Literal["loop", "stacked"]:
    """Return the faster one on this batch, timed in turns after a first call each; the loop if stacking fails."""
    seconds: dict[Pass, list[float]] = {loop: [], stacked: []}
    try:
        for _ in range(1 + _REPEATS):
            for way, times in seconds.items():
                start = time.perf_counter()
                losses = way(nodes, step, inputs)
                losses.sum().item()  # waits for a GPU
                times.append(time.perf_counter() - start)
    except TrainingError:
        return "loop"
    return "stacked" if min(seconds[stacked][1:]) < min(seconds[loop][1:]) else "loop"
