"""The last block of an encoder, only as far as the head looks at it.

The head of BERT and its relatives reads the first position of the last block and no other. Keys and values are needed
of all positions; the query, and what follows the attention, is needed of the first one alone and computed for it alone:
the same logits in less than a third of the time for that block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixwise.models.freezing import blocks_of

# Type of model -> the query in a block, and the parts from which on one position is enough.
_BERT = ("attention.self.query", ("attention.output",))
_PARTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "distilbert": ("attention.q_lin", ("attention.out_lin", "sa_layer_norm")),
}


def only_first_position(model: nn.Module, model_type: str) -> None:
    """Let the last block of a classifier compute no more than its head reads; models of other types are left alone."""
    if model_type not in _PARTS:
        return
    block, (query, parts) = blocks_of(model)[-1], _PARTS[model_type]
    block.get_submodule(query).register_forward_pre_hook(_first_of_many)
    block.get_submodule(query).register_forward_hook(_for_all)
    for path in parts:
        block.get_submodule(path).register_forward_pre_hook(_first, with_kwargs=True)


def _first(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(map(_cut, args)), {key: _cut(value) for key, value in kwargs.items()}


def _first_of_many(part: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
    part.__dict__["positions"] = args[0].shape[1]  # a note for `_for_all`
    return args[0][:, :1]


def _for_all(part: nn.Module, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The query of the first position at all of them: the attention expects as many as keys, one beside the other."""
    return out.expand(-1, part.__dict__["positions"], -1).contiguous()


def _cut(value: Any) -> Any:
    return value[:, :1] if isinstance(value, torch.Tensor) else value
