"""How many tensors (m, d) a run holds: seen in a rehearsal of three mixings with short rows.

The optimizer, the algorithm and the policy are those of the run, only the rows are short and their gradients random. So
what is counted is what the run does, also for a method of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from mixwise.layout import Layout
from mixwise.protocols import Task
from mixwise.state import State
from mixwise.tasks.allocations import Allocations
from mixwise.training.training import Training

# Numbers in all rows of the two rehearsals: far more than what a method works on at a time (blocks of columns).
_NUMBERS = (1 << 19, 1 << 20)
_LOOKS = 10_000  # mixings in which a policy that will ever look again at the updates does so


@dataclass(frozen=True)
class RowCount:
    """How many tensors (m, d) there are, X and G included; all of them may be fractions.

    Attributes:
        optimizer: what the optimizer remembers.
        algorithm: what the algorithm remembers.
        gradients: all that are there while gradients are computed.
        most: all that are there at any moment.
    """

    optimizer: float
    algorithm: float
    gradients: float
    most: float

    def __str__(self) -> str:
        parts = [("optimizer", self.optimizer), ("algorithm", self.algorithm)]
        parts.append(("for a moment", self.most - 2 - self.optimizer - self.algorithm))
        return ", ".join(["X", "G", *(f"{_plain(count)} {name}" for name, count in parts if count >= 0.005)])


def count_rows(
    start: Callable[[Task], Training],
    nodes: int,
    dim: int,
    *,
    groups: Sequence[tuple[int, int]] = (),
    dtype: torch.dtype = torch.float32,
) -> RowCount:
    """Rehearse.

    Args:
        start: makes the run of a task; it is called with tasks of short rows, in one process.
        nodes: n.
        dim: d of the run.
        groups: (start, stop) of the columns of each group of the optimizer, if there are several.
        dtype: of the rows.
    """

    def rehearsed(numbers: int) -> _Bytes:
        seen = Allocations()
        short = max(1, numbers // nodes)
        columns = _scaled(groups, short) if len(groups) > 1 else [(0, short)]
        return _rehearsed(start, _ShortRows(nodes, dim, columns, dtype, seen), seen)

    short, long = map(rehearsed, _NUMBERS)
    unit = nodes * dtype.itemsize * (long.dim - short.dim)  # what does not grow with the rows falls out
    return RowCount(
        optimizer=round((long.optimizer - short.optimizer) / unit, 2),
        algorithm=round((long.algorithm - short.algorithm) / unit, 2),
        gradients=round((long.gradients - short.gradients) / unit, 2),
        most=round((long.most - short.most) / unit, 2),
    )


@dataclass(frozen=True)
class _Bytes:
    dim: int
    optimizer: int
    algorithm: int
    gradients: int
    most: int


def _rehearsed(start: Callable[[Task], Training], task: _ShortRows, seen: Allocations) -> _Bytes:
    with seen:
        training = start(task)
        # Between several local steps it does not matter how many they are.
        tau = training.local_steps = training.driver.local_steps = min(2, training.local_steps)
        for _ in range(2 * tau):  # two mixings: in the first nothing is remembered yet
            training.step()
        later = next(
            (t for t in range(2, _LOOKS) if training.policy.looks(t, training.driver.policy_state) is not None), 2
        )
        training.t, training.driver.t = later * tau, later
        for _ in range(tau):  # a third one, in which the policy looks at the updates
            training.step()
    remembered = [value for entries in training.optimizer.state.values() for value in entries.values()]
    return _Bytes(
        task.short, _size(remembered), _size(_remembered(training.driver.algorithm_state)), task.most, seen.peak
    )


def _remembered(state: State) -> list[torch.Tensor]:
    """The rows and arcs of a state and of all states inside."""
    return [value for _, part in state.walk() for value in (*part.rows.values(), *part.arcs.values())]


class _ShortRows(Task):
    """A task without data, whose rows end with the last of its groups of columns.

    The length in its layout is that of the run: it decides whether the optimizer steps row by row.
    """

    def __init__(
        self, nodes: int, dim: int, groups: list[tuple[int, int]], dtype: torch.dtype, seen: Allocations
    ) -> None:
        self.nodes, self.layout, self.short = nodes, Layout(dim, groups), groups[-1][1]
        self._dtype, self._seen = dtype, seen
        self.most = 0  # bytes that were there while gradients were computed
        self._G: torch.Tensor | None = None
        self._draws = torch.Generator().manual_seed(0)

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        return torch.zeros(len(nodes), self.short, dtype=self._dtype)

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._G is None:  # kept from step to step, as `ModuleTask` does
            self._G = torch.zeros_like(X)
        self.most = max(self.most, self._seen.live)
        self._G.normal_(generator=self._draws)
        return torch.zeros(len(nodes), dtype=self._dtype), self._G

    def evaluate(self, X: torch.Tensor, others: object = None) -> dict[str, float]:
        return {}


def _scaled(blocks: Sequence[tuple[int, int]], dim: int) -> list[tuple[int, int]]:
    """The same shares of shorter rows, at least one column each."""
    whole, rest = blocks[-1][1], len(blocks)
    ends = [number + (dim - rest) * stop // whole for number, (_, stop) in enumerate(blocks, 1)]
    return list(pairwise([0, *ends]))


def _size(values: object) -> int:
    assert hasattr(values, "__iter__")
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


def _plain(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")
