"""Buffers of the nodes' modules, such as the running statistics of BatchNorm: a row per node, like parameters.

Legend: B (m, b) holds the buffers that have the dtype of the rows; every other one (a counter, a mask) has a tensor
(m, *shape) of its own, which is never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from mixwise.errors import TrainingError
from mixwise.tasks.others import Others

_COLUMNS = 1 << 14

Place = tuple[nn.Module, str, torch.Tensor]  # a module's part, the name of a buffer in it, what must stand there


class NodeBuffers:
    """The buffers of m modules like `template`, persistent or not.

    Args:
        template: every node starts with its buffers.
        nodes: how many nodes, m.
        dtype: of the rows; buffers of this dtype live in B.
    """

    def __init__(self, template: nn.Module, nodes: int, dtype: torch.dtype) -> None:
        first: dict[int, str] = {}
        every = template.named_buffers(remove_duplicate=False)
        self._first = {name: first.setdefault(id(buffer), name) for name, buffer in every}  # a shared one stays shared
        buffers = dict(template.named_buffers())
        own = {name: buffer.detach() for name, buffer in buffers.items() if buffer.dtype == dtype}
        flat = [buffer.reshape(-1) for buffer in own.values()]
        self.B = torch.cat(flat or [torch.empty(0, dtype=dtype)]).repeat(nodes, 1)
        self._rows: dict[str, torch.Tensor] = {}  # first name -> (m, *shape)
        start = 0
        for name, buffer in own.items():
            self._rows[name] = self.B[:, start : start + buffer.numel()].view(nodes, *buffer.shape)
            start += buffer.numel()
        for name in buffers.keys() - own.keys():
            self._rows[name] = buffers[name].detach().repeat(nodes, *[1] * buffers[name].ndim)

    def __len__(self) -> int:
        return len(self.B)

    def of(self, i: int) -> dict[str, torch.Tensor]:
        """The buffers in row i, by name, copied; one that a module has twice is one tensor here too."""
        copies = {first: rows[i].clone() for first, rows in self._rows.items()}
        return {name: copies[first] for name, first in self._first.items()}

    def average(self, others: Others | None = None) -> dict[str, torch.Tensor]:
        """The means over the rows of all nodes, by name; see `average`."""
        means = {first: average(rows, others) for first, rows in self._rows.items()}
        return {name: means[first] for name, first in self._first.items()}

    def attach(self, module: nn.Module, i: int) -> list[Place]:
        """Make a module's buffers views of row i; the result is for `collect`."""
        views = {first: self._rows[first][i] for first in self._rows}
        places = []
        for name, first in self._first.items():
            path, _, key = name.rpartition(".")
            part = module.get_submodule(path)
            setattr(part, key, views[first])
            places.append((part, key, views[first]))
        return places

    # --- what a checkpoint holds ---
    def state(self) -> dict[str, torch.Tensor]:
        """The buffers of all rows, (m, *shape), by name."""
        return {name: self._rows[first].clone() for name, first in self._first.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the values of such a state."""
        if state.keys() != self._first.keys():
            wrong = sorted(state.keys() ^ self._first.keys())[0]
            where = "is not in the module" if wrong in state else "is missing"
            raise TrainingError(f"the buffer {wrong!r} {where}: the checkpoint is of another module")
        for name, first in self._first.items():
            rows = self._rows[first]
            if rows.shape != state[name].shape:
                raise TrainingError(
                    f"the buffer {name!r} has shape {tuple(state[name].shape)}, expected {tuple(rows.shape)}"
                )
            rows.copy_(state[name])


@torch.no_grad()
def collect(places: list[Place]) -> None:
    """Bring back into the rows what a forward pass assigned anew instead of changing it in place."""
    for part, key, view in places:
        now = getattr(part, key)
        if now is not view:
            view.copy_(now)
            setattr(part, key, view)


def mean_row(rows: torch.Tensor) -> torch.Tensor:
    """The mean over nodes, summed in float64 without a copy of all rows, (…) of rows (m, …)."""
    wide = torch.float32 if rows.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    total = torch.zeros(rows.shape[1:], dtype=wide, device=rows.device)
    for row in rows:
        total += row
    return total.div_(len(rows)).to(rows.dtype)


def mean_of_all(rows: torch.Tensor, others: Others) -> torch.Tensor:
    """The same with the rows of other processes, a few columns at a time: no copy of all rows, nor a message as large.

    Every process takes the same columns at the same time, however many rows it has.
    """
    wide = torch.float32 if rows.device.type == "mps" else torch.float64
    flat = rows.reshape(len(rows), -1)
    parts = (flat[:, start : start + _COLUMNS] for start in range(0, flat.shape[1], _COLUMNS))
    means = [others.average(part.to(wide)).to(rows.dtype) for part in parts]
    return torch.cat(means).view(rows.shape[1:]) if means else mean_row(rows)


def average(rows: torch.Tensor, others: Others | None = None) -> torch.Tensor:
    """The mean over nodes of a buffer (m, …); of a counter and the like, which has none, the first one's here."""
    if not rows.is_floating_point():
        return rows[0].clone()
    return mean_row(rows) if others is None else mean_of_all(rows, others)


def set_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Let these stand where the module has buffers of their names."""
    for name, value in buffers.items():
        path, _, key = name.rpartition(".")
        setattr(module.get_submodule(path), key, value)


def changed_buffer(before: nn.Module, after: nn.Module) -> str | None:
    """The name of a buffer in which two copies of a module differ."""
    old = dict(before.named_buffers())
    return next((name for name, new in after.named_buffers() if not torch.equal(old[name], new)), None)
