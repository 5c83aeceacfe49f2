"""Some of the nodes of a task, renumbered from 0, with the data that they always had."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mixwise.protocols import State, Task
from mixwise.tasks.others import Others


class Restricted(Task):
    """A task of some nodes of another task.

    Args:
        task: the task of all nodes.
        names: the nodes that are kept, as that task numbers them.
    """

    def __init__(self, task: Task, names: Sequence[int]) -> None:
        self.task, self._names = task, list(names)
        self.nodes, self.layout = len(self._names), task.layout

    @property
    def names(self) -> Sequence[int]:
        """The numbers of the nodes in the task of all nodes."""
        return self._names

    @property
    def mixed_buffers(self) -> torch.Tensor | None:  # type: ignore[override]  # they are those of the current run
        """The buffers to mix."""
        return self.task.mixed_buffers

    @property
    def label_counts(self) -> npt.NDArray[np.int64] | None:  # type: ignore[override]
        """(n, classes), of the kept nodes."""
        counts = self.task.label_counts
        return None if counts is None else counts[self._names]

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return the starting rows of these nodes."""
        return self.task.initial(self._named(nodes))

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses and gradients that these nodes have in the task of all nodes."""
        return self.task.losses_and_gradients(X, self._named(nodes), step)

    def evaluate(self, X: torch.Tensor, others: Others | None = None) -> dict[str, float]:
        """Return the metrics of the kept nodes."""
        return self.task.evaluate(X, others)

    def state(self) -> State:
        """Return the state of the task, which has one row per owned node, however they are numbered."""
        return self.task.state()

    def load_state(self, state: State) -> None:
        """Continue from such a state."""
        self.task.load_state(state)

    def _named(self, nodes: Sequence[int]) -> list[int]:
        return [self._names[node] for node in nodes]
