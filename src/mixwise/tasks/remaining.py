"""What is left of a task when nodes are lost: the others, renumbered from 0, with the data that they always had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixwise.tasks.base import Others, Task


def remaining_task(task: Task, nodes: Sequence[int]) -> Task:
    """The task of these nodes; its node i is `nodes[i]` of the task, which may know better how that is done."""
    restricted: Task = task.restricted(nodes) if hasattr(task, "restricted") else Remaining(task, nodes)
    return restricted


class Remaining:
    """A task of some nodes of another task.

    Args:
        task: of all nodes.
        names: the nodes that are left, as that task knows them.
    """

    def __init__(self, task: Task, names: Sequence[int]) -> None:
        self.task, self.names = task, list(names)
        self.nodes, self.dim = len(self.names), task.dim

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """As if nobody was lost."""
        return self.task.initial(self._named(nodes))

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As if nobody was lost."""
        return self.task.losses_and_gradients(X, self._named(nodes), step)

    def evaluate(self, X: torch.Tensor, others: Others | None = None) -> dict[str, float]:
        """Of those that are left."""
        return self.task.evaluate(X, others)

    def _named(self, nodes: Sequence[int]) -> list[int]:
        return [self.names[node] for node in nodes]

    def __getattr__(self, name: str) -> Any:
        """What some tasks have besides, such as blocks, buffers and their state, does not depend on the numbers."""
        if name == "task":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.task, name)
