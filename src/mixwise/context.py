"""The facts about a run that its parts may know before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.needs import Needs
from mixwise.seeding import stream

if TYPE_CHECKING:
    from mixwise.network.links import Links


@dataclass(frozen=True, eq=False)
class Context:
    """The surroundings of a part: where its nodes are, how its random streams are named, and what the algorithm needs.

    Args:
        places: the graph before the nodes are placed on it.
        order: `order[a]` is the node at place a; node a by default.
        seed: names the random streams of this part; a nested part gets its own from its path (`at`).
        label_counts: (n, classes), how many samples of each label a node holds; None for tasks without labels.
        needs: what the algorithm of the run needs of the weights.
        links: how long messages take, if that is known.
        row_bytes, wire_bytes: of a row in memory and on the wire.
        row_length: d, the numbers in a row, if that is known.
    """

    places: Graph
    order: Sequence[int] | None = None
    seed: int = 0
    label_counts: npt.NDArray[np.int64] | None = None
    needs: Needs = field(default_factory=Needs)
    links: Links | None = None
    row_bytes: float = 1.0
    wire_bytes: float = 1.0
    row_length: int | None = None

    @cached_property
    def graph(self) -> Graph:
        """The graph of the nodes."""
        return self.places if self.order is None else self.places.permuted(self.order)

    def at(self, name: str) -> Context:
        """The context of a nested part, with random streams of its own."""
        return replace(self, seed=stream(self.seed, name))

    def placed(self, W: MixingMatrix) -> MixingMatrix:
        """Weights for the places, as weights for the nodes."""
        return W if self.order is None else W.permuted(self.order)

    def labels(self, what: str) -> npt.NDArray[np.int64]:
        """The label counts, or an error if the task has no labels."""
        if self.label_counts is None:
            raise MixingError(f"{what} needs a task with labels; use a classification task")
        return self.label_counts
