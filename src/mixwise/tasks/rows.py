"""Rows of X: all parameters of a module, one after the other, in one row per node.

Legend: X, G (m, d); a module of node i sees row i through views, so that nothing is copied between the module, the
optimizer and the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from mixwise.errors import TrainingError
from mixwise.layout import Slot
from mixwise.protocols import Layout

GroupOf = Callable[[str, nn.Parameter], int]  # the number of the optimizer's parameter group of a parameter


class RowLayout(Layout):
    """The places of a module's trained parameters in a row, sorted by optimizer group, so that a group is one block.

    Frozen parameters have no place. A parameter that the module uses twice has one place.
    """

    def __init__(self, module: nn.Module, group_of: GroupOf = lambda name, parameter: 0) -> None:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise TrainingError("the module has no parameter to train; let some of them require a gradient")
        if lazy := next((name for name, p in trained if isinstance(p, nn.UninitializedParameter)), None):
            raise TrainingError(f"the parameter {lazy!r} has no shape yet; run a batch through it in the factory")
        trained.sort(key=lambda item: group_of(*item))  # stable: the module's own order inside a group
        self.dtype = trained[0][1].dtype  # the compute precision
        slots: list[Slot] = []
        groups: dict[int, tuple[int, int]] = {}  # group -> (start, stop)
        end = 0
        for name, parameter in trained:
            group, start, end = group_of(name, parameter), end, end + parameter.numel()
            slots.append(Slot(name, parameter.shape, start, end))
            groups[group] = (groups.get(group, (start, end))[0], end)
        super().__init__(end, [groups[group] for group in sorted(groups)], slots)

    def flatten(self, module: nn.Module) -> torch.Tensor:
        """Return the row (d,) of a module."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[slot.name].detach().reshape(-1) for slot in self.slots])

    def bind(self, module: nn.Module, row: torch.Tensor, gradient: torch.Tensor) -> None:
        """Make a module's parameters, and their gradients, views of a row of X and of G."""
        parameters = dict(module.named_parameters())
        for slot in self.slots:
            parameters[slot.name].data = slot.view(row)
            parameters[slot.name].grad = slot.view(gradient)

    def module(self, template: nn.Module, row: torch.Tensor) -> nn.Module:
        """Return a module like `template` whose parameters are views of a row; frozen ones are the template's own."""
        parameters = dict(template.named_parameters())
        known: dict[int, object] = {id(p): p for p in parameters.values()}  # what a copy takes as it is
        for name, view in self.named_views(row):
            known[id(parameters[name])] = type(parameters[name])(view, True)
        return copy.deepcopy(template, known)

    def named_views(self, rows: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the view of every parameter, for one row or for stacked rows."""
        for slot in self.slots:
            yield slot.name, slot.view(rows)
