"""Count the tensors (m, d) that a run holds, by rehearsing three mixings with short rows.

The optimizer, the algorithm and the policy are those of the run; only the rows are short, and their gradients random.
So the count is right for every method, including your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from mixwise.protocols import Layout, Task
from mixwise.tasks.pass_memory import Allocations
from mixwise.training.training import Training

# Numbers in all rows of the two rehearsals: far more than any method works on at a time (blocks of columns).
_NUMBERS = (1 << 19, 1 << 20)
_LAST = 10_000  # mixings within which a policy that will ever observe again does so


@dataclass(frozen=True)
class RowCount:
    """The number of tensors (m, d), X and G included; fractions occur, such as one row out of m.

    Attributes:
        optimizer: held by the optimizer all the time.
        algorithm: held by the algorithm all the time.
        gradients: held while gradients are computed.
        most: held at the peak of the run.
    """

    optimizer: float
    algorithm: float
    gradients: float
    most: float

    def __str__(self) -> str:
        parts = [("optimizer", self.optimizer), ("algorithm", self.algorithm)]
        parts.append(("temporary", self.most - 2 - self.optimizer - self.algorithm))
        return ", ".join(["X", "G", *(f"{plain(count)} {name}" for name, count in parts if count >= 0.005)])


def count_rows(
    start: Callable[[Task], Training], nodes: int, dim: int, *, groups: Sequence[tuple[int, int]] = (),
    dtype: torch.dtype = torch.float32,
) -> RowCount:  # fmt: skip
    """Count the tensors (m, d) of a run.

    Args:
        start: makes the run of a task; it is called with tasks of short rows, in one process.
        nodes: n.
        dim: d of the run.
        groups: (start, stop) of the columns of each optimizer group, if there are several.
        dtype: of the rows.
    """
    tasks = [_ShortRows(nodes, dim, max(1, numbers // nodes), groups, dtype) for numbers in _NUMBERS]
    short, long = (_rehearse(start, task) for task in tasks)
    unit = nodes * dtype.itemsize * (tasks[1].length - tasks[0].length)  # the difference drops what does not grow
    return RowCount(*(round((more - less) / unit, 2) for less, more in zip(short, long, strict=True)))


def plain(count: float) -> str:
    """A count of tensors with at most one decimal.

    >>> plain(4.0), plain(4.06)
    ('4', '4.1')
    """
    return f"{count:.1f}".removesuffix(".0")


def _rehearse(start: Callable[[Task], Training], task: _ShortRows) -> tuple[int, int, int, int]:
    """The bytes of the four attributes of a `RowCount`."""
    with task.seen:
        training = start(task)
        for mixing in (0, 1):  # in the first one, nothing is remembered yet
            _mix(training, mixing)
        policy, state = training.policy, training.driver.policy_state
        _mix(training, next((t for t in range(2, _LAST) if policy.looks(t, state) is not None), 2))
    optimizer = [value for entries in training.optimizer.state.values() for value in entries.values()]
    states = [part for _, part in training.driver.algorithm_state.walk()]
    algorithm = [value for part in states for value in (*part.rows.values(), *part.arcs.values())]
    return _size(optimizer), _size(algorithm), task.peak, task.seen.peak


def _mix(training: Training, mixing: int) -> None:
    """Take the first and the last of the local steps that lead to a mixing."""
    first, last = mixing * training.local_steps, (mixing + 1) * training.local_steps - 1
    for step in sorted({first, last}):
        training.t, training.driver.t = step, mixing
        training.step()


class _ShortRows(Task):
    """A task without data, whose rows are shorter than its layout says.

    The layout has the length of the run's rows, since it decides whether the optimizer steps row by row.
    """

    def __init__(
        self, nodes: int, dim: int, length: int, groups: Sequence[tuple[int, int]], dtype: torch.dtype
    ) -> None:
        self.nodes, self.length = nodes, length
        stops = [stop for _, stop in groups] or [dim]
        rest = length - len(stops)  # at least one column per group; the others are shared in proportion
        ends = [i + rest * stop // stops[-1] for i, stop in enumerate(stops, 1)]
        self.layout = Layout(dim, list(pairwise([0, *ends])))
        self.seen = Allocations()
        self.peak = 0  # bytes that were held while gradients were computed
        self._dtype = dtype
        self._G: torch.Tensor | None = None
        self._draws = torch.Generator().manual_seed(0)

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        return torch.zeros(len(nodes), self.length, dtype=self._dtype)

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._G is None:  # kept from step to step, as in `ModuleTask`
            self._G = torch.zeros_like(X)
        self.peak = max(self.peak, self.seen.live)
        self._G.normal_(generator=self._draws)
        return torch.zeros(len(nodes), dtype=self._dtype), self._G

    def evaluate(self, X: torch.Tensor, others: object = None) -> dict[str, float]:
        return {}


def _size(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
