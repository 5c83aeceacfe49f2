"""The gradients of all nodes at once, with `torch.func.vmap` over stacked parameters.

Legend: X, G (m, d); losses (m,); x (m, b, …), y (m, b); a linear layer has W (m, o, i) and bias (m, o).

It pays for small dense models, where the overhead of many small operations counts, and loses on convolutions. The
gradients of large linear layers are written to their place in G by the product that makes them, which saves a copy and
a transposition. A chain of linear layers, such as an MLP, is taken layer by layer, without vmap around the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mixwise.errors import TrainingError
from mixwise.models.basic import Expect
from mixwise.tasks.buffers import changed_buffer
from mixwise.tasks.devices import own_randomness
from mixwise.tasks.gradients import LocalPass, Loss
from mixwise.tasks.inputs import Inputs
from mixwise.tasks.rows import RowLayout

Layer: TypeAlias = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]  # (x, parameters) -> y

# Weights of all nodes from which on writing them directly pays: it costs 0.2 ms per layer, a copy 0.16 ms per MB.
LARGE = 1 << 19
# They treat every sample alike, so that the nodes' batches can be one; vmap would cost 0.2 ms.
_PER_SAMPLE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity, Expect)


class Stacked:
    """All nodes at once; for modules without random layers and without buffers that change.

    Args:
        local: the pass of a node.
        X, G: the rows, and the place of their gradients.
    """

    def __init__(self, local: LocalPass, X: torch.Tensor, G: torch.Tensor) -> None:
        self.local, self.G, self.large = local, G, LARGE
        self._into = {name: _Place(view) for name, view in local.layout.named_views(G)}
        layers = _chain(local.template, self._into)
        self._losses = torch.func.vmap(self._loss, randomness="error")
        if layers is not None:
            self._losses = partial(_losses_of_chain, layers, _stacked_loss(local.loss))
        self._checked = next(local.template.buffers(), None) is None
        self.bind(X)

    def bind(self, X: torch.Tensor) -> None:
        """Use these rows from now on."""
        self._parameters = {name: view.detach().requires_grad_() for name, view in self.local.layout.named_views(X)}

    def __call__(self, nodes: Sequence[int], step: int, inputs: Inputs) -> torch.Tensor:
        """Return the losses (m,)."""
        if not self._checked:
            self._check_buffers(inputs.one(nodes[0], step)[0])
        x, y = inputs.all(nodes, step)
        for place in self._into.values():
            place.open, place.written = False, False
        try:
            losses: torch.Tensor = self._losses(self._parameters, x, y)
            if losses.ndim > 1:
                raise RuntimeError("its loss is not one number per batch")
            for place in self._into.values():
                place.open = True
            trained = list(self._parameters.values())
            gradients = torch.autograd.grad(losses, trained, torch.ones_like(losses), allow_unused=True)
        except RuntimeError as error:  # not seen in layers: dropout as a function, a branch on values, …
            raise _refused(str(error).partition("\n")[0]) from error
        for name, gradient in zip(self._parameters, gradients, strict=True):
            self._into[name].finish(gradient)
        return losses.detach()

    def _loss(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        large = [(parameters[name], place) for name, place in self._into.items() if place.view.numel() >= self.large]
        with _LinearLayers(large) if large else nullcontext():
            return self.local.loss(torch.func.functional_call(self.local.template, parameters, (x,)), y)

    @torch.no_grad()
    def _check_buffers(self, x: torch.Tensor) -> None:
        """Reject a module that changes a buffer: a pass over stacked parameters would not keep the change."""
        module = copy.deepcopy(self.local.template)
        with own_randomness(self.G.device):
            module(x)
        if (name := changed_buffer(self.local.template, module)) is not None:
            raise _refused(f"whose buffer {name!r} changes in training")
        self._checked = True


class StackedBlocks:
    """Some nodes at once, then the next ones.

    Args:
        local: the pass of a node.
        X, G: the rows, and the place of their gradients.
        size: how many nodes are stacked.
    """

    def __init__(self, local: LocalPass, X: torch.Tensor, G: torch.Tensor, size: int) -> None:
        self.G, self._size = G, size
        self._blocks = [Stacked(local, *rows) for rows in zip(torch.split(X, size), torch.split(G, size), strict=True)]

    def bind(self, X: torch.Tensor) -> None:
        """Use these rows from now on."""
        for block, rows in zip(self._blocks, torch.split(X, self._size), strict=True):
            block.bind(rows)

    def __call__(self, nodes: Sequence[int], step: int, inputs: Inputs) -> torch.Tensor:
        """Return the losses (m,)."""
        starts = range(0, len(nodes), self._size)
        some = (nodes[start : start + self._size] for start in starts)
        return torch.cat([block(part, step, inputs) for block, part in zip(self._blocks, some, strict=True)])


@torch.no_grad()
def correct(
    module: nn.Module,
    layout: RowLayout,
    X: torch.Tensor,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    size: int,
) -> torch.Tensor:
    """Return how many samples the model of each row classifies as labeled, float64 (m,); `size` rows at a time."""
    right = torch.zeros(len(X), dtype=torch.float64)
    for x, y in batches:

        def count(parameters: dict[str, torch.Tensor], x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            outputs: torch.Tensor = torch.func.functional_call(module, parameters, (x,))
            return (outputs.argmax(1) == y).sum()

        counts = [torch.func.vmap(count)(dict(layout.named_views(rows))) for rows in torch.split(X, size)]
        right += torch.cat(counts).cpu()
    return right


# --- a chain of linear layers ---
def _chain(module: nn.Module, places: Mapping[str, _Place], prefix: str = "") -> list[Layer] | None:
    """Return the layers, for all nodes at once, if they are linear, or without parameters; None for other modules."""
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) is nn.Sequential:
        parts = [_chain(part, places, f"{prefix}{name}.") for name, part in module.named_children()]
        return None if None in parts else [layer for layers in parts for layer in layers or ()]
    if next(module.parameters(), None) is None:
        if type(module) in _PER_SAMPLE or (type(module) is nn.Flatten and module.start_dim == 1):
            return [lambda x, parameters: module(x.flatten(0, 1)).unflatten(0, x.shape[:2])]
        over_nodes = torch.func.vmap(module, randomness="error")
        return [lambda x, parameters: over_nodes(x)]
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if type(module) is not nn.Linear or weight not in places or (module.bias is not None and bias not in places):
        return None  # frozen and tied parameters have no place of their own
    return [lambda x, parameters: _stacked_linear(x, parameters[weight], parameters.get(bias), places[weight])]


def _losses_of_chain(
    layers: Sequence[Layer], loss: Loss, parameters: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    for layer in layers:
        x = layer(x, parameters)
    return loss(x, y)


def _stacked_loss(loss: Loss) -> Loss:
    """Return the loss of every node (m,), of outputs (m, b, …) and labels (m, b)."""
    if loss is not nn.functional.cross_entropy:
        return torch.func.vmap(loss, randomness="error")

    def cross_entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten(0, 1), reduction="none")
        return each.view(len(y), -1).mean(1)

    return cross_entropy


def _refused(reason: str) -> TrainingError:
    return TrainingError(f'gradients = "stacked" cannot run this module, {reason}; use gradients = "loop"')


class _Place:
    """The place of the gradient of one parameter in G, a view (m, *shape)."""

    def __init__(self, view: torch.Tensor) -> None:
        self.view = view
        self.open = False  # whether the pass under way is the one that G is for
        self.written = False

    def add_product(self, A: torch.Tensor, B: torch.Tensor) -> None:
        """Add A B of every node, A (m, o, b) and B (m, b, i)."""
        if not self.open:
            raise RuntimeError("the loss takes gradients itself")
        if self.written:  # a weight that is used twice
            self.view.baddbmm_(A, B)
        else:
            torch.bmm(A, B, out=self.view)
        self.written = True

    def finish(self, gradient: torch.Tensor | None) -> None:
        """Add the gradient that autograd found besides the products."""
        if gradient is not None:
            self.view.add_(gradient) if self.written else self.view.copy_(gradient)
        elif not self.written:  # the loss does not depend on it
            self.view.zero_()


class _LinearLayers(TorchFunctionMode):
    """A context in which `linear` writes the gradients of these weights to their places."""

    def __init__(self, places: Iterable[tuple[torch.Tensor, _Place]]) -> None:
        super().__init__()
        self.places = {id(weight): place for weight, place in places}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.linear and not kwargs and len(args) == 3 and id(args[1]) in self.places:
            return _Linear.apply(*args, self.places[id(args[1])])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """x Wᵀ + bias of one node; never computed as such, since all nodes are taken together."""

    @staticmethod
    def forward(x: torch.Tensor, W: torch.Tensor, bias: torch.Tensor | None, place: _Place) -> torch.Tensor:
        return nn.functional.linear(x, W, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, W: torch.Tensor, bias: Any, place: _Place
    ) -> tuple[torch.Tensor, int]:
        m = info.batch_size
        x, W = _rows_first(x, in_dims[0], m), _rows_first(W, in_dims[1], m)
        bias = None if bias is None else _rows_first(bias, in_dims[2], m)
        return _stacked_linear(x, W, bias, place), 0


def _stacked_linear(x: torch.Tensor, W: torch.Tensor, bias: torch.Tensor | None, place: _Place) -> torch.Tensor:
    """x Wᵀ + bias of every node, x (m, …, i)."""
    y: torch.Tensor = _StackedLinear.apply(x.reshape(len(x), -1, x.shape[-1]), W, bias, place)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


class _StackedLinear(torch.autograd.Function):
    """Y = X Wᵀ + bias for every node, X (m, b, i), Y (m, b, o); ∂W = ∂Yᵀ X goes to its place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, W: torch.Tensor, bias: torch.Tensor | None, place: _Place) -> torch.Tensor:
        ctx.save_for_backward(x, W)
        ctx.place = place
        y = torch.bmm(x, W.mT)
        return y if bias is None else y.add_(bias.unsqueeze(1))  # baddbmm takes longer, when W is not in the cache

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, W = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.place.add_product(dy.mT, x)
        dx = torch.bmm(dy, W) if ctx.needs_input_grad[0] else None
        return dx, None, dy.sum(1) if ctx.needs_input_grad[2] else None, None


def _rows_first(value: torch.Tensor, at: int | None, m: int) -> torch.Tensor:
    """Move the axis of the nodes, `at`, to the front; None means that all nodes share the value."""
    return value.expand(m, *value.shape) if at is None else value.movedim(at, 0)
