"""Training only a part of a model: its last blocks and its head.

The blocks of a module are, in this order of preference:

1. the elements of its attribute `blocks` (our residual networks);
2. of an `nn.Sequential`, the runs of layers that begin with a matrix or a kernel, the last of which is the head
   (`small-cnn`, `mlp`);
3. the elements of that `nn.ModuleList` among its parts that holds most parameters (transformers of Hugging Face).

What the module registers before the first trained block (embeddings, a stem, lower blocks) is frozen; what comes after
the last block (a pooler, a norm, a classifier) is the head.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

from mixwise.errors import ConfigError

Trained: TypeAlias = Literal["all", "head"] | int


def freeze(module: nn.Module, train: Trained) -> nn.Module:
    """Freeze all but the last blocks and the head, in place; frozen parts are in eval mode, so without dropout.

    Args:
        module: any module that has blocks.
        train: "all", "head", or how many blocks below the head are trained, too.

    >>> from mixwise.models import mlp
    >>> [name for name, p in freeze(mlp((4, 3, 3, 2)), 1).named_parameters() if p.requires_grad]
    ['4.weight', '4.bias', '6.weight', '6.bias']
    """
    if train == "all":
        return module
    first = first_trained(module, train)
    if first is None:  # nothing lies below
        return module
    before: set[int] = set()  # parts that come before the first trained one
    for part in module.modules():
        if part is first:
            break
        before.add(id(part))
    trained = {id(p) for part in from_part(module, first) for p in part.parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    for part in module.modules():
        own = list(part.parameters())
        leaf = next(part.children(), None) is None
        if id(part) in before and all(id(p) not in trained for p in own) and (own or leaf):
            part.eval()
    return module


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The first layer of every block, in order; of a module that is no plain sequence, the blocks themselves."""
    listed = getattr(module, "blocks", None)
    if isinstance(listed, nn.Sequential | nn.ModuleList):
        return list(listed)
    if isinstance(module, nn.Sequential):
        return [layer for layer in module if any(p.ndim > 1 for p in layer.parameters())][:-1]
    lists = [(sum(p.numel() for p in part.parameters()), part) for part in _lists(module)]
    return list(max(lists, key=lambda item: item[0])[1]) if lists else []


def first_trained(module: nn.Module, train: Trained) -> nn.Module | None:
    """The first part that is trained: a block, or the head; None if all is."""
    blocks = blocks_of(module)
    if train == "all":
        return None
    if train == "head":
        return _head(module, blocks)
    if isinstance(train, bool) or not isinstance(train, int) or not 1 <= train <= len(blocks):
        there = f"this model has {len(blocks)} blocks" if blocks else "this model has no blocks"
        raise ConfigError(f"train = {train!r}; {there}: choose all, head, or the number of blocks to train")
    return blocks[-train]


def _head(module: nn.Module, blocks: list[nn.Module]) -> nn.Module | None:
    """The first part with parameters after the last block."""
    if not blocks and isinstance(module, nn.Sequential):
        return None  # one layer: it is the head
    if isinstance(module, nn.Sequential) and not isinstance(getattr(module, "blocks", None), nn.Module):
        return next(layer for layer in reversed(module) if any(p.ndim > 1 for p in layer.parameters()))
    if not blocks:
        raise ConfigError("train = 'head'; this model has no blocks, so that its head is not known: choose all")
    inside, passed = {id(part) for part in blocks[-1].modules()}, False
    for part in module.modules():
        passed = passed or part is blocks[-1]
        if passed and id(part) not in inside and next(part.parameters(), None) is not None:
            return part
    raise ConfigError("train = 'head'; this model has nothing to train after its last block: choose a number of blocks")


def from_part(module: nn.Module, first: nn.Module) -> list[nn.Module]:
    """`first` and all parts that the module registers after it."""
    parts = list(module.modules())
    return parts[next(i for i, part in enumerate(parts) if part is first) :]


def _lists(module: nn.Module) -> list[nn.ModuleList]:
    return [part for part in module.modules() if isinstance(part, nn.ModuleList)]
