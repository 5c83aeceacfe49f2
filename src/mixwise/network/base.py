"""What an algorithm may ask of the network: mix my rows with the neighbors', gather something small, count the bytes.

Legend: n nodes in all; m rows owned by this process; rows (m, d) row-contiguous tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.packing import Packing

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


class Network(Protocol):
    """Moves rows between nodes; the only way in which nodes learn of each other.

    Attributes:
        graph: who may talk to whom.
        nodes: the nodes whose rows are here.
        traffic: what all nodes have sent, the same number on every process.
        step: the step that is under way, for messages; whoever steps sets it.
    """

    graph: Graph
    nodes: range
    traffic: Traffic
    step: int | None

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """One gossip step: the owned rows of Wᵀ X, (m, d), in a new tensor or in `out`, which may be `rows` itself.

        `packing`: how the rows look on the wire, if they travel in fewer bytes.
        """
        ...

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Pending:
        """The same in two parts: the rows set out now, and arrive at the latest when somebody waits for them."""
        ...

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """One row per arc i → j of `graph`: from those that the owned nodes send, sorted by (i, j), to those that
        arrive at them, sorted by (j, i). Counted as `cargo`."""
        ...

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Small rows (m, k) of all nodes, (n, k), on every process."""
        ...

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean (d,) of the rows of all nodes: an all-reduce, not gossip; the same bits on every process."""
        ...

    def uncounted(self) -> AbstractContextManager[None]:
        """Traffic inside is not counted: for measuring."""
        ...
