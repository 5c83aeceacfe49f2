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

from itertools import dropwhile
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
    (blocks, head), parts = _blocks_and_head(module), list(module.modules())
    if train == "all":
        return parts
    if train == "head":
        if head is None:
            reason = "it has no parameters after its last block" if blocks else "it has no blocks"
            raise ConfigError(f"train = 'head'; the head of this model is unknown, since {reason}: choose all")
        return parts[parts.index(head) :]
    if isinstance(train, bool) or not isinstance(train, int) or not 1 <= train <= len(blocks):
        found = f"train = {train!r}; this model has {len(blocks) or 'no'} blocks"
        raise ConfigError(f"{found}: choose all, head, or a number of blocks")
    return parts[parts.index(blocks[-train]) :]


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the blocks in order; of an `nn.Sequential`, the first layer of each."""
    return _blocks_and_head(module)[0]


def _blocks_and_head(module: nn.Module) -> tuple[list[nn.Module], nn.Module | None]:
    """Return the blocks, and the first part with parameters after the last one, if there is any."""
    blocks = getattr(module, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList):
        if isinstance(module, nn.Sequential):
            layers = [layer for layer in module if any(p.ndim > 1 for p in layer.parameters())]
            return layers[:-1], layers[-1] if len(layers) > 1 else module  # a single layer is the head
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        blocks = max(lists, key=lambda part: sum(p.numel() for p in part.parameters()), default=nn.ModuleList())
    if len(blocks) == 0:
        return [], None
    last = list(blocks[-1].modules())
    after = dropwhile(lambda part: part is not last[0], module.modules())
    heads = (part for part in after if part not in last and next(part.parameters(), None) is not None)
    return list(blocks), next(heads, None)
