"""Counting what the nodes send, and gossip steps that are under way.

Legend: n nodes in all; m rows owned by this process; rows (m, d) row-contiguous tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch

Cargo: TypeAlias = Literal["parameters", "sketches"]  # what travels: the counter of `Traffic` that it goes to


@dataclass
class Traffic:
    """Bytes that the nodes have sent since the start, summed over all nodes; seconds, where links are simulated.

    What is counted is what this implementation sends with one node per process, however many nodes a process has and
    also in a simulation: per gossip step a row along every arc with a non-zero weight; per gather each row to n − 1
    nodes; per average over all nodes, which a gossip step with W = J is as well, 2 (n − 1) / n rows per node, or n − 1
    rows below 64 kB, which go in one round.
    """

    parameters: int = 0
    sketches: int = 0
    seconds: float = 0.0

    def add(self, cargo: Cargo, size: int) -> None:
        """Count `size` bytes."""
        setattr(self, cargo, getattr(self, cargo) + size)

    def reset(self) -> None:
        """Count from 0 again."""
        vars(self).update(vars(Traffic()))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is counted inside is forgotten at the end."""
        before = vars(self).copy()
        try:
            yield
        finally:
            vars(self).update(before)


class Pending(Protocol):
    """A gossip step under way; its rows must stay as they are until `wait` returns."""

    def wait(self) -> torch.Tensor:
        """The owned rows of Wᵀ X."""
        ...

    def move(self, rows: torch.Tensor) -> None:
        """Instead of `wait`: add (W − I)ᵀ X to these rows, in place; the memory of X may be used for it."""
        ...
