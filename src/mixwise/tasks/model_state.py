"""A complete model from rows: what a module's `state_dict` holds besides the trained parameters.

In the rows of the state, (m, *shape), one per node:

    buffers.<name>    a buffer
    transient.<name>  a buffer that is not in the `state_dict` (persistent=False)

and shared by all nodes:

    frozen.<name>     a parameter that is not trained
    tied.<name>       the name of the parameter that this one is tied to
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from mixwise.errors import TrainingError
from mixwise.protocols import State
from mixwise.state import Tensors
from mixwise.tasks.buffers import NodeBuffers, average


def model_state(template: nn.Module, buffers: NodeBuffers) -> State:
    """Return the state of a run with these buffers, copied."""
    persistent = template.state_dict().keys()
    rows = {
        f"{'buffers' if name in persistent else 'transient'}.{name}": value for name, value in buffers.state().items()
    }
    shared: dict[str, object] = {f"frozen.{name}": p.detach().clone() for name, p in _frozen(template).items()}
    return State(rows, shared=shared | {f"tied.{name}": first for name, first in _tied(template).items()})


@torch.no_grad()
def load_model_state(template: nn.Module, buffers: NodeBuffers, state: State) -> None:
    """Restore the buffers and the frozen parameters."""
    buffers.load_state(_below("buffers.", state.rows) | _below("transient.", state.rows))
    saved = _below("frozen.", state.shared)
    for name, parameter in _frozen(template).items():
        if name not in saved or saved[name].shape != parameter.shape:
            found = f"has shape {tuple(saved[name].shape)}" if name in saved else "is missing"
            raise TrainingError(f"the frozen parameter {name!r} {found}, expected {tuple(parameter.shape)}")
        parameter.copy_(saved[name])


def complete(parameters: Tensors, state: State, node: int | None) -> Tensors:
    """Return a `state_dict` from the trained parameters of one node, or, if None, of the averaged model.

    No two of its tensors share memory.
    """
    found = {name: value.clone() for name, value in parameters.items()}
    found |= {name: value.clone() for name, value in _below("frozen.", state.shared).items()}
    for name, rows in _below("buffers.", state.rows).items():
        found[name] = rows[node].clone() if node is not None else average(rows)
    tied = {name.removeprefix("tied."): first for name, first in state.shared.items() if name.startswith("tied.")}
    return found | {name: found[first].clone() for name, first in tied.items()}


def _below(prefix: str, values: Mapping[str, torch.Tensor]) -> Tensors:
    """The tensors whose names start with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _frozen(template: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in template.named_parameters() if not p.requires_grad}


def _tied(template: nn.Module) -> dict[str, str]:
    """Second and further names of parameters -> the first name."""
    first = {id(p): name for name, p in template.named_parameters()}
    every = template.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}
