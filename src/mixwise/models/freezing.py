"""Training only a part of a model: its last blocks and its head.

The blocks of a module are, in this order of preference:

1. the elements of its attribute `blocks` (our residual networks);
2. of an `nn.Sequential`, the runs of layers that begin with a matrix or a kernel, the last of which is the head
   (`small-cnn`, `mlp`);
3. the elements of its `nn.ModuleList` with the most parameters (transformers of Hugging Face).

Everything registered before the first trained block (embeddings, a stem, lower blocks) is frozen; everything after the
last block (a pooler, a norm, a classifier) is the head.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

from mixwise.errors import ConfigError

Trained: TypeAlias = Literal["all", "head"] | int


def freeze(module: nn.Module, train: Trained) -> nn.Module:
    """Freeze all but the last blocks and the head, in place; frozen parts are in eval mode, thus without dropout.

    Args:
        module: any module with blocks.
        train: "all", "head", or the number of blocks below the head that are trained as well.

    >>> from mixwise.models import mlp
    >>> [name for name, p in freeze(mlp((4, 3, 3, 2)), 1).named_parameters() if p.requires_grad]
    ['4.weight', '4.bias', '6.weight', '6.bias']
    """
    if train == "all":
        return module
    trained = trained_parts(module, train)
    parameters = {id(p) for part in trained for p in part.parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in parameters)
    for part in module.modules():
        if part is trained[0]:
            break
        own = [id(p) for p in part.parameters()]
        leaf = next(part.children(), None) is None
        if (own or leaf) and parameters.isdisjoint(own):
            part.eval()
    return module


def trained_parts(module: nn.Module, train: Trained) -> list[nn.Module]:
    """Return the first trained block, or the head, and all parts that the module registers after it."""
    blocks, parts = blocks_of(module), list(module.modules())
    if train == "all":
        return parts
    if train == "head":
        return parts[parts.index(_head(module, blocks)) :]
    if isinstance(train, bool) or not isinstance(train, int) or not 1 <= train <= len(blocks):
        raise ConfigError(
            f"train = {train!r}; this model has {len(blocks) or 'no'} blocks: choose all, head, or a number of blocks"
        )
    return parts[parts.index(blocks[-train]) :]


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the blocks in order; of an `nn.Sequential`, the first layer of each."""
    if (listed := _listed(module)) is not None:
        return list(listed)
    if isinstance(module, nn.Sequential):
        return _weighted(module)[:-1]
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=lambda part: sum(p.numel() for p in part.parameters()), default=()))


def _listed(module: nn.Module) -> nn.Sequential | nn.ModuleList | None:
    listed = getattr(module, "blocks", None)
    return listed if isinstance(listed, nn.Sequential | nn.ModuleList) else None


def _weighted(module: nn.Sequential) -> list[nn.Module]:
    """Return the layers with a matrix or a kernel."""
    return [layer for layer in module if any(p.ndim > 1 for p in layer.parameters())]


def _head(module: nn.Module, blocks: list[nn.Module]) -> nn.Module:
    """Return the first part with parameters after the last block."""
    if isinstance(module, nn.Sequential) and _listed(module) is None:
        return _weighted(module)[-1] if blocks else module  # a single layer is the head
    if not blocks:
        raise ConfigError("train = 'head'; the head of this model is unknown, since it has no blocks: choose all")
    inside, passed = set(blocks[-1].modules()), False
    for part in module.modules():
        passed = passed or part is blocks[-1]
        if passed and part not in inside and next(part.parameters(), None) is not None:
            return part
    raise ConfigError("train = 'head'; this model has no parameters after its last block: choose a number of blocks")
