"""A complete model out of rows: what a module's `state_dict` holds besides the trained parameters.

    buffers.<name>    (m, *shape), one per node
    transient.<name>  the same, of a buffer that is not in the `state_dict` (persistent=False)
    frozen.<name>     a parameter that is not trained
    tied.<name>       the name of the parameter that stands there too, as bytes

Tensors only, so that a checkpoint can hold them and loading it never runs code.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from mixwise.errors import TrainingError
from mixwise.tasks.buffers import NodeBuffers, average

Tensors = dict[str, torch.Tensor]


def parts_of(template: nn.Module, buffers: NodeBuffers) -> Tensors:
    """The parts of a run with these buffers, copied."""
    persistent = template.state_dict().keys()
    parts = {
        f"{'buffers' if name in persistent else 'transient'}.{name}": rows for name, rows in buffers.state().items()
    }
    parts |= {f"frozen.{name}": p.detach().clone() for name, p in _frozen(template).items()}
    return parts | {f"tied.{name}": _as_bytes(first) for name, first in _tied(template).items()}


@torch.no_grad()
def load_parts(template: nn.Module, buffers: NodeBuffers, parts: Mapping[str, torch.Tensor]) -> None:
    """Put the buffers and the frozen parameters where they were."""
    buffers.load_state(below("buffers.", parts) | below("transient.", parts))
    saved = below("frozen.", parts)
    for name, parameter in _frozen(template).items():
        if name not in saved or saved[name].shape != parameter.shape:
            there = f"has shape {tuple(saved[name].shape)}" if name in saved else "is missing"
            raise TrainingError(f"the frozen parameter {name!r} {there}, expected {tuple(parameter.shape)}")
        parameter.copy_(saved[name])


def complete(parameters: Tensors, parts: Mapping[str, torch.Tensor], node: int | None) -> Tensors:
    """A `state_dict` from the trained parameters of one node, or, if None, of the averaged model.

    No two tensors of it share memory.
    """
    state = {name: value.clone() for name, value in parameters.items()}
    state |= {name: value.clone() for name, value in below("frozen.", parts).items()}
    for name, rows in below("buffers.", parts).items():
        state[name] = rows[node].clone() if node is not None else average(rows)
    return state | {name: state[_as_text(first)].clone() for name, first in below("tied.", parts).items()}


def below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """The tensors whose name starts so, by the rest of their name."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _frozen(template: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in template.named_parameters() if not p.requires_grad}


def _tied(template: nn.Module) -> dict[str, str]:
    """Second and further names of parameters -> the first name."""
    first = {id(p): name for name, p in template.named_parameters()}
    every = template.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}


def _as_bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _as_text(values: torch.Tensor) -> str:
    return bytes(values.tolist()).decode()
