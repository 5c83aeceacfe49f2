"""The gradients of all nodes, node after node; and the choice between this and all at once (`stacked.py`).

Legend: X, G (m, d); losses (m,); a batch x (b, …), y (b,) per node.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import nn

from mixwise.data import Dataset
from mixwise.errors import TrainingError
from mixwise.seeding import stream
from mixwise.tasks.bfloat16 import REMEDY, broken_bfloat16
from mixwise.tasks.buffers import NodeBuffers, collect
from mixwise.tasks.inputs import Inputs
from mixwise.tasks.randomness import own_randomness
from mixwise.tasks.rows import RowLayout
from mixwise.tasks.stacked import Loss

Gradients: TypeAlias = Literal["auto", "measure", "loop", "stacked"]

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_DENSE = (nn.Linear, nn.LayerNorm, nn.Embedding)  # where stacking was measured to pay
_REPEATS = 3


class Way(Protocol):
    """Writes the gradients at X into G."""

    G: torch.Tensor  # (m, d)

    def bind(self, X: torch.Tensor) -> None:
        """From now on the rows are these."""
        ...

    def __call__(self, nodes: Sequence[int], step: int, inputs: Inputs) -> torch.Tensor:
        """Losses (m,)."""
        ...


@dataclass(frozen=True)
class PassOptions:
    """How the pass of a node is done.

    Args:
        accumulate: in how many pieces, one after the other; the gradients of a batch are the mean over its samples, so
            those of the pieces are averaged by their sizes.
        autocast: torch.bfloat16: products in this precision, sums and parameters in that of the rows.
    """

    accumulate: int = 1
    autocast: torch.dtype | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is asked for."""
        return self.accumulate == 1 and self.autocast is None

    def check(self, module: nn.Module, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Refuse what would not give the gradients of the batch."""
        if not 1 <= self.accumulate <= batch:
            raise TrainingError(
                f"accumulate = {self.accumulate} pieces of a batch of {batch}; take 1 to {batch} of at least one sample"
            )
        norm = next((n for n, part in module.named_modules() if isinstance(part, _BATCH_NORMS) and part.training), None)
        if self.accumulate > 1 and norm is not None:
            raise TrainingError(
                f"accumulate = {self.accumulate} would take the statistics of the batch normalization {norm!r} from "
                f"a piece of the batch; take a norm that looks at one sample (group, layer, EvoNorm-S0), or no pieces"
            )
        if self.autocast is None:
            return
        if self.autocast != torch.bfloat16:
            raise TrainingError(f"autocast = {self.autocast} loses small gradients; take torch.bfloat16")
        if dtype != torch.float32:
            raise TrainingError(f"autocast shortens products of torch.float32, not of {dtype}; drop one of the two")
        if device.type == "cpu" and (killed := broken_bfloat16()) is not None:
            raise TrainingError(
                f"autocast = {self.autocast}: bfloat16 products kill a process on this CPU ({killed}), which announces "
                f"AMX instructions that it does not execute; {REMEDY}"
            )


class NodeByNode:
    """One module per node: its parameters are views of a row of X, their gradients of a row of G.

    Args:
        template: a module like the nodes'.
        layout: where its parameters lie in a row.
        loss: of outputs and labels, averaged over the batch.
        X, G: the rows, and where their gradients go.
        buffers: of the nodes' modules.
        seed: names the draws of random layers.
        options: how a pass is done.
    """

    def __init__(
        self,
        template: nn.Module,
        layout: RowLayout,
        loss: Loss,
        X: torch.Tensor,
        G: torch.Tensor,
        buffers: NodeBuffers,
        seed: int,
        options: PassOptions = PassOptions(),  # noqa: B008 - it never changes
    ) -> None:
        self.layout, self.loss, self.G, self.seed, self.options = layout, loss, G, seed, options
        self._modules = [layout.module(template, row) for row in X]
        self.bind(X)
        self._places = [buffers.attach(module, i) for i, module in enumerate(self._modules)]
        self._frozen = [p for p in template.parameters() if not p.requires_grad]  # one for all nodes
        self._versions = self._frozen_versions()

    def bind(self, X: torch.Tensor) -> None:
        """From now on the rows are these."""
        for module, row, gradient in zip(self._modules, X, self.G, strict=True):
            self.layout.bind(module, row, gradient)

    def __call__(self, nodes: Sequence[int], step: int, inputs: Inputs) -> torch.Tensor:
        """Losses (m,)."""
        self.G.zero_()  # backward adds to the views of G
        losses = torch.empty(len(nodes), dtype=self.layout.dtype, device=self.G.device)
        with own_randomness(self.G.device) as reseed:
            for i, (node, (x, y)) in enumerate(zip(nodes, inputs.each(nodes, step), strict=True)):
                reseed(stream(self.seed, "layers", node, step))
                losses[i] = self._passed(self._modules[i], x, y)
                collect(self._places[i])
        if self._frozen_versions() != self._versions:
            raise TrainingError(
                "the module changes a frozen parameter, which all nodes share; "
                "register what changes without being trained as a buffer"
            )
        return losses

    def _passed(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of one batch; its gradients are added to those of the module's parameters."""
        if self.options.plain:
            loss = self.loss(module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        total = torch.zeros((), dtype=self.layout.dtype, device=y.device)
        pieces = self.options.accumulate
        for part, labels in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
            with torch.autocast(y.device.type, self.options.autocast, enabled=self.options.autocast is not None):
                loss = self.loss(module(part), labels) * (len(labels) / len(y))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _frozen_versions(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._frozen]


def refusal(module: nn.Module, data: Dataset) -> str | None:
    """Why "stacked" would not give the same result, as far as layers and data show; None if it would."""
    if not isinstance(data.x, torch.Tensor):
        return f"{data.name}, which is read piece by piece"
    for name, part in module.named_modules():
        if isinstance(part, _BATCH_NORMS):
            return f"the batch normalization {name!r}, whose statistics change in place"
        if isinstance(part, _RANDOM):
            return f"the random layer {name!r}, whose draws must depend on the node alone"
    return None


def chosen(
    gradients: Gradients, module: nn.Module, data: Dataset, other: str | None = None
) -> Literal["measure", "loop", "stacked"]:
    """The way to the gradients as far as it is known before a first batch; `other` is a reason to go node by node."""
    if gradients not in ("auto", "measure", "loop", "stacked"):
        raise TrainingError(f'gradients = {gradients!r}; choose "auto", "measure", "loop" or "stacked"')
    reason = other or refusal(module, data)
    if gradients == "stacked" and reason is not None:
        raise TrainingError(f'gradients = "stacked" cannot run {reason}; take gradients = "loop"')
    if reason is not None:
        return "loop"
    if gradients != "auto":
        return gradients
    layers = [part for part in module.modules() if any(True for _ in part.parameters(recurse=False))]
    dense = all(isinstance(part, _DENSE) for part in layers) and not any(True for _ in module.buffers())
    return "stacked" if dense else "loop"


def faster(loop: Way, stacked: Way, nodes: Sequence[int], step: int, inputs: Inputs) -> Literal["loop", "stacked"]:
    """The faster one on this batch, timed in turns after a first call each; the loop where stacking is impossible."""
    seconds: dict[Way, list[float]] = {loop: [], stacked: []}
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
