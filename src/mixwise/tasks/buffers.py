"""Buffers of the nodes' modules, such as the running statistics of BatchNorm: one row per node, like parameters.

Legend: B (m, b) holds the buffers that have the dtype of the rows; every other one (a counter, a mask) has a tensor
(m, *shape) of its own, which is never mixed.

Together with the parameters that are frozen or tied, they complete a model. In the rows of a task's state, (m, *shape):

    buffers.<name>    a buffer
    transient.<name>  a buffer that is not in the `state_dict` (persistent=False)

and shared by all nodes:

    frozen.<name>     a parameter that is not trained
    tied.<name>       the name of the parameter that this one is tied to
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mixwise.errors import TrainingError
from mixwise.protocols import State
from mixwise.state import Tensors
from mixwise.tasks.others import AllHere, Others

_COLUMNS = 1 << 14

Place = tuple[nn.Module, str, torch.Tensor]  # a part of a module, the name of a buffer in it, and its value


class NodeBuffers:
    """The buffers of m modules like `template`, persistent or not.

    Args:
        template: every node starts with its buffers.
        nodes: the number of nodes, m.
        dtype: of the rows; buffers of this dtype are in B.
    """

    def __init__(self, template: nn.Module, nodes: int, dtype: torch.dtype) -> None:
        first: dict[int, str] = {}
        every = template.named_buffers(remove_duplicate=False)
        self._first = {name: first.setdefault(id(buffer), name) for name, buffer in every}  # a shared one stays shared
        buffers = template.named_buffers()
        self._rows = {name: b.detach().repeat(nodes, *[1] * b.ndim) for name, b in buffers}  # (m, *shape)
        own = {name: rows for name, rows in self._rows.items() if rows.dtype == dtype}
        flat = [rows.reshape(nodes, -1) for rows in own.values()]
        self.B = torch.cat(flat or [torch.empty(nodes, 0, dtype=dtype)], dim=1)
        columns = torch.split(self.B, [rows.shape[1] for rows in flat], dim=1) if flat else ()
        self._rows |= {name: part.view(own[name].shape) for name, part in zip(own, columns, strict=True)}

    def views(self, i: int) -> Tensors:
        """Return the buffers in row i by name, as views."""
        return self._named({first: rows[i] for first, rows in self._rows.items()})

    def of(self, i: int) -> Tensors:
        """Return copies of the buffers in row i by name; a buffer that a module has twice is one tensor here too."""
        return self._named({first: rows[i].clone() for first, rows in self._rows.items()})

    def average(self, others: Others | None = None) -> Tensors:
        """Return the means over the rows of all nodes by name; see `average`."""
        return self._named({first: average(rows, others) for first, rows in self._rows.items()})

    def rows(self) -> Tensors:
        """Return the buffers of all rows by name, (m, *shape), as views."""
        return self._named(self._rows)

    def _named(self, values: Tensors) -> Tensors:
        return {name: values[first] for name, first in self._first.items()}


def set_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> list[Place]:
    """Replace the buffers of these names; the result is for `collect`."""
    places = []
    for name, value in buffers.items():
        path, _, key = name.rpartition(".")
        places.append((module.get_submodule(path), key, value))
        setattr(*places[-1])
    return places


@torch.no_grad()
def collect(places: list[Place]) -> None:
    """Copy buffers that a forward pass replaced, instead of changing them in place, back into the rows."""
    for part, key, view in places:
        now = getattr(part, key)
        if now is not view:
            view.copy_(now)
            setattr(part, key, view)


def changed_buffer(before: nn.Module, after: nn.Module) -> str | None:
    """Return the name of a buffer in which two copies of a module differ."""
    old = dict(before.named_buffers())
    return next((name for name, new in after.named_buffers() if not torch.equal(old[name], new)), None)


# --- means over nodes ---
def mean_row(rows: torch.Tensor, others: Others | None = None) -> torch.Tensor:
    """Return the mean (…) of the rows (m, …) of all nodes, summed in float64.

    A few columns at a time, to keep copies and messages small; all processes take the same columns at the same time.
    """
    flat, others = rows.reshape(len(rows), -1), others or AllHere(len(rows))
    wide = torch.float32 if rows.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    mean = torch.empty(flat.shape[1], dtype=rows.dtype, device=rows.device)
    for start in range(0, len(mean), _COLUMNS):
        part = slice(start, start + _COLUMNS)
        mean[part] = others.average(flat[:, part].to(wide))
    return mean.view(rows.shape[1:])


def average(rows: torch.Tensor, others: Others | None = None) -> torch.Tensor:
    """Return the mean of a buffer (m, …) over nodes; integers have none: the value of the first node here."""
    return mean_row(rows, others) if rows.is_floating_point() else rows[0].clone()


# --- the state of a task, and complete models ---
def model_state(template: nn.Module, buffers: NodeBuffers) -> State:
    """Return the state of a run with these buffers, copied."""
    saved = template.state_dict().keys()
    rows = {f"{'buffers' if name in saved else 'transient'}.{name}": b.clone() for name, b in buffers.rows().items()}
    shared: dict[str, object] = {f"frozen.{name}": p.detach().clone() for name, p in _frozen(template).items()}
    first = {id(p): name for name, p in template.named_parameters()}
    every = template.named_parameters(remove_duplicate=False)
    return State(rows, shared=shared | {f"tied.{name}": first[id(p)] for name, p in every if first[id(p)] != name})


def load_model_state(template: nn.Module, buffers: NodeBuffers, state: State) -> None:
    """Restore the buffers and the frozen parameters."""
    _copy("buffer", buffers.rows(), _below("buffers.", state.rows) | _below("transient.", state.rows))
    _copy("frozen parameter", _frozen(template), _below("frozen.", state.shared))


def complete(parameters: Tensors, state: State, node: int | None) -> Tensors:
    """Return a `state_dict` from the trained parameters of one node, or, if None, of the averaged model.

    No two of its tensors share memory.
    """
    found = {name: value.clone() for name, value in (parameters | _below("frozen.", state.shared)).items()}
    for name, rows in _below("buffers.", state.rows).items():
        found[name] = rows[node].clone() if node is not None else average(rows)
    return found | {name: found[first].clone() for name, first in _below("tied.", state.shared).items()}


@torch.no_grad()
def _copy(what: str, into: Mapping[str, torch.Tensor], saved: Tensors) -> None:
    if wrong := sorted(into.keys() ^ saved.keys()):
        found = "is missing" if wrong[0] in into else "is not in the module"
        raise TrainingError(f"the {what} {wrong[0]!r} {found}: the checkpoint is of another module")
    for name, value in into.items():
        if value.shape != saved[name].shape:
            found = f"has shape {tuple(saved[name].shape)}, expected {tuple(value.shape)}"
            raise TrainingError(f"the {what} {name!r} {found}: the checkpoint is of another module")
        value.copy_(saved[name])


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose names start with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _frozen(template: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in template.named_parameters() if not p.requires_grad}
