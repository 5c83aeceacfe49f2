"""The last block of an encoder, computed only for the position that the head reads.

The head of BERT and its relatives reads only the first position of the last block. Keys and values are needed for all
positions; the query, and everything after the attention, only for the first: the same logits in less than a third of
the time for that block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixwise.models.freezing import blocks_of

# Type of model -> the query in a block, and the parts from which one position suffices.
_BERT = ("attention.self.query", ("attention.output",))
_PARTS = dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT) | {
    "distilbert": ("attention.q_lin", ("attention.out_lin", "sa_layer_norm"))
}


def only_first_position(model: nn.Module, model_type: str) -> None:
    """Restrict the last block of a classifier to what its head reads; models of other types stay as they are."""
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
    part.__dict__["positions"] = args[0].shape[1]  # for `_for_all`
    return args[0][:, :1]


def _for_all(part: nn.Module, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Repeat the query of the first position: the attention expects as many queries as keys, contiguous in memory."""
    return out.expand(-1, part.__dict__["positions"], -1).contiguous()


def _cut(value: Any) -> Any:
    return value[:, :1] if isinstance(value, torch.Tensor) else value
