"""Training any `nn.Module`: every node has its own copy, as views of its row of X, and its own data.

Legend: X, G (m, d); losses (m,); a batch (b, …) per node.

Two ways to the same gradients. `loop`: node after node, forward and backward through its module. `stacked`: all nodes
at once with `torch.func.vmap` over stacked parameters; it pays for small dense models, where the overhead of many small
operations counts, and loses on convolutions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from mixwise.data import Dataset, NodeBatches, Partition
from mixwise.errors import TrainingError
from mixwise.seeding import generator, stream
from mixwise.tasks.rows import GroupOf, RowLayout

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Augment: TypeAlias = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Gradients: TypeAlias = Literal["auto", "loop", "stacked"]

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_DENSE = (nn.Linear, nn.LayerNorm, nn.Embedding)  # where stacking was measured to pay


class ModuleTask:
    """One module, one loss, a data set divided over nodes.

    Args:
        module: makes the module; called once, every node starts from the same parameters.
        data: the training set.
        partition: which samples each node holds.
        batch: samples per node and step.
        test: the common test set, for `evaluate`.
        loss: of outputs and labels, averaged over the batch.
        augment: changes a batch of inputs at random.
        gradients: "loop", "stacked", or "auto": stacked if every layer with parameters is dense.
        group_of: the optimizer group of a parameter, e.g. to keep norms and biases free of weight decay.
        device, dtype: where and in what precision the rows are kept.
        seed: names the order of the data, augmentation and random layers.
    """

    def __init__(
        self,
        module: Callable[[], nn.Module],
        data: Dataset,
        partition: Partition,
        *,
        batch: int = 32,
        test: Dataset | None = None,
        loss: Loss = nn.functional.cross_entropy,
        augment: Augment | None = None,
        gradients: Gradients = "auto",
        group_of: GroupOf = lambda name, parameter: 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.data, self.partition, self.test, self.loss, self.augment = data, partition, test, loss, augment
        self.nodes, self.batch, self.seed = len(partition), batch, seed
        self.device, self.dtype = torch.device(device), dtype
        self.template = module().to(device=self.device, dtype=dtype)
        self.layout = RowLayout(self.template, group_of)
        self.dim, self.blocks = self.layout.dim, self.layout.blocks
        self.gradients = _chosen(gradients, self.template)
        self._batches = NodeBatches(partition, batch, seed)
        self._x, self._y = data.x.to(self.device), data.y.to(self.device)
        self._modules: list[nn.Module] = []
        self._bound: torch.Tensor | None = None
        self._G: torch.Tensor = torch.empty(0)

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """The same starting row on every node."""
        return self.layout.flatten(self.template).repeat(len(nodes), 1)

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses (m,) and gradients (m, d) on each node's batch of this step; G is reused by the next call."""
        self._bind(X)
        batches = [self._batch(node, step) for node in nodes]
        losses = self._stacked(X, batches) if self.gradients == "stacked" else self._loop(nodes, step, batches)
        return losses, self._G

    def module_of(self, row: torch.Tensor) -> nn.Module:
        """A copy of the module with the parameters of one row."""
        module = copy.deepcopy(self.template)
        state = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.layout.named_views(row):
                state[name].copy_(view)
        return module

    # --- gradients ---
    def _loop(self, nodes: Sequence[int], step: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        self._G.zero_()  # backward adds to the views of G
        losses = torch.empty(len(nodes), dtype=self.dtype, device=self.device)
        for i, (node, module, (x, y)) in enumerate(zip(nodes, self._modules, batches, strict=True)):
            # Dropout and the like draw from the global generator: give them one that knows node and step only.
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                # Not torch.manual_seed on a CPU: it also notes the seed for GPUs to come, which takes 1 ms or 2.
                seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
                seed(stream(self.seed, "layers", node, step))
                loss = self.loss(module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses[i] = loss.detach()
        return losses

    def _stacked(self, X: torch.Tensor, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        def one(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.loss(torch.func.functional_call(self.template, parameters, (x,)), y)

        x, y = torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
        both = torch.func.vmap(torch.func.grad_and_value(one), randomness="error")
        try:
            gradients, losses = both(dict(self.layout.named_views(X)), x, y)
        except RuntimeError as error:  # what `_chosen` cannot see: dropout as a function, a branch on values, …
            reason = str(error).partition("\n")[0]
            raise TrainingError(
                f'gradients = "stacked" cannot run this module ({reason}); take gradients = "loop"'
            ) from error
        for name, view in self.layout.named_views(self._G):
            view.copy_(gradients[name])
        result: torch.Tensor = losses
        return result

    # --- rows and data ---
    def _bind(self, X: torch.Tensor) -> None:
        """Make the nodes' modules views of the rows; done again only if X is another tensor."""
        if self._bound is not None and self._bound.data_ptr() == X.data_ptr() and self._bound.shape == X.shape:
            return
        self._bound, self._G = X, torch.zeros_like(X)
        if self.gradients == "loop":
            self._modules = [copy.deepcopy(self.template) for _ in range(len(X))]
            for module, row, gradient in zip(self._modules, X, self._G, strict=True):
                self.layout.bind(module, row, gradient)
                module.train()

    def _batch(self, node: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = self._batches(node, step).to(self.device)
        x = self._x[index]
        if self.augment is not None:
            x = self.augment(x, generator(self.seed, "augment", node, step))
        return self._as_input(x), self._y[index]

    def _as_input(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers in the precision of the rows; a byte v of an image means v / 255; whole numbers (tokens) stay."""
        if x.dtype == torch.uint8:
            return x.to(self.dtype) / 255
        return x.to(self.dtype) if x.is_floating_point() else x

    # --- figures of merit ---
    def evaluate(self, X: torch.Tensor) -> dict[str, float]:
        """Accuracy on the common test set: mean over nodes, worst node, spread, and the averaged model."""
        if self.test is None:
            raise TrainingError("there is no test set to evaluate on; give one with test=…")
        each = torch.tensor([self.accuracy(row, self.test) for row in X], dtype=torch.float64)
        return {
            "accuracy": float(each.mean()),
            "accuracy_worst": float(each.min()),
            "accuracy_spread": float(each.std(correction=0)),
            "accuracy_average_model": self.accuracy(X.double().mean(0).to(X.dtype), self.test),
        }

    @torch.no_grad()
    def accuracy(self, row: torch.Tensor, data: Dataset, batch: int = 1000) -> float:
        """Share of samples that the module with these parameters classifies as labeled."""
        module = self.module_of(row).eval()
        right = 0
        for start in range(0, len(data), batch):
            x, y = data.x[start : start + batch].to(self.device), data.y[start : start + batch].to(self.device)
            outputs: Any = module(self._as_input(x))
            right += int((outputs.argmax(1) == y).sum())
        return right / len(data)


def _chosen(gradients: Gradients, module: nn.Module) -> Literal["loop", "stacked"]:
    """The way to the gradients; "stacked" is refused where it would not give the same result."""
    if gradients not in ("auto", "loop", "stacked"):
        raise TrainingError(f'gradients = {gradients!r}; choose "auto", "loop" or "stacked"')
    batch_norm = next((name for name, part in module.named_modules() if isinstance(part, _BATCH_NORMS)), None)
    random = next((name for name, part in module.named_modules() if isinstance(part, _RANDOM)), None)
    if gradients == "stacked" and batch_norm is not None:
        raise TrainingError(
            f'gradients = "stacked" cannot run the batch normalization {batch_norm!r}, whose statistics change in '
            f'place; take gradients = "loop"'
        )
    if gradients == "stacked" and random is not None:
        raise TrainingError(
            f'gradients = "stacked" cannot run the random layer {random!r}, whose draws must depend on the node alone; '
            f'take gradients = "loop"'
        )
    if gradients != "auto":
        return gradients
    layers = [part for part in module.modules() if any(True for _ in part.parameters(recurse=False))]
    dense = all(isinstance(part, _DENSE) for part in layers) and not any(True for _ in module.buffers())
    return "stacked" if dense and random is None and batch_norm is None else "loop"
