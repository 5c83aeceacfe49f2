"""The last block of an encoder, only as far as the head looks at it.

The head of BERT and its relatives reads the first position of the last block and no other. Keys and values are needed
of all positions; what follows the attention is needed of the first one alone, and is computed for it alone: the same
logits for a third of the work of that block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixwise.models.freezing import blocks_of

# Type of model -> the parts of a block from which on one position is enough.
_FROM = {
    "bert": ("attention.output",),
    "roberta": ("attention.output",),
    "xlm-roberta": ("attention.output",),
    "camembert": ("attention.output",),
    "electra": ("attention.output",),
    "distilbert": ("attention.out_lin", "sa_layer_norm"),
}


def only_first_position(model: nn.Module, model_type: str) -> None:
    """Let the last block of a classifier compute no more than its head reads; models of other types are left alone."""
    for path in _FROM.get(model_type, ()):
        blocks_of(model)[-1].get_submodule(path).register_forward_pre_hook(_first, with_kwargs=True)


def _first(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(map(_cut, args)), {key: _cut(value) for key, value in kwargs.items()}


def _cut(value: Any) -> Any:
    return value[:, :1] if isinstance(value, torch.Tensor) else value
