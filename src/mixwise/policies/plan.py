"""What a policy sees and what it answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.mixing import GmeSolution, MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.sketch import CountSketch, Sketch
from mixwise.sketch.base import as_sketch

_PIECE = 1 << 17  # numbers of U that are there at a time


@dataclass(frozen=True)
class StepSums:
    """What is needed for sketches of U = X − X′ where X is gone: its sums, by sketch, and X′."""

    before: dict[CountSketch, FloatArray]
    after: torch.Tensor


@dataclass(frozen=True)
class StepRows:
    """X and X′, each (m, d), where both are there anyway: U = X − X′ comes out of them piece by piece."""

    before: torch.Tensor
    after: torch.Tensor

    def pieces(self) -> Iterator[torch.Tensor]:
        """U, some columns at a time."""
        m, d = self.before.shape
        width = max(1, _PIECE // m)
        for start in range(0, d, width):
            columns = slice(start, start + width)
            yield self.before[:, columns] - self.after[:, columns]


@dataclass(frozen=True)
class Observation:
    """The owned rows at mixing t, each (m, d)."""

    updates: torch.Tensor | None  # U = X − X′: what the optimizer did; only if the policy said that it observes
    gradients: torch.Tensor  # G
    parameters: torch.Tensor  # X′: the rows that are about to be mixed
    # Instead of the updates, if their sketches are all that the policy asks for:
    stepped: StepSums | StepRows | None = None

    def sketched_updates(self, sketch: Sketch) -> torch.Tensor:
        """S (m, k) of the updates."""
        if isinstance(self.stepped, StepRows):
            return sketch.streamed(self.stepped.pieces())
        if self.stepped is not None and isinstance(sketch, CountSketch) and sketch in self.stepped.before:
            return as_sketch(self.stepped.before[sketch] - sketch.sums(self.stepped.after), self.stepped.after)
        assert self.updates is not None  # the policy said that it observes
        return sketch(self.updates)


@dataclass(frozen=True)
class Plan:
    """The matrices of one mixing, one communication round each, in the order in which they are applied.

    `updates` is there only for algorithms that mix parameters and updates apart; `tree`, instead of matrices, for
    those that relay along a spanning tree. `solve` tells what the optimizer of the weights reported, if it ran.
    """

    params: tuple[MixingMatrix, ...]
    updates: tuple[MixingMatrix, ...] | None = None
    solve: GmeSolution | None = None
    tree: Graph | None = None

    @property
    def matrices(self) -> tuple[MixingMatrix, ...]:
        """All of them, of both channels."""
        return self.params + (self.updates or ())

    @cached_property
    def params_product(self) -> FloatArray:
        """W₁ W₂ ⋯, (n, n): what all rounds of `params` do together, since Wᵀ_2 (Wᵀ_1 X) = (W₁ W₂)ᵀ X."""
        return _product(self.params)

    @cached_property
    def updates_product(self) -> FloatArray:
        """The same for the updates; they go the way of the parameters unless the plan says otherwise."""
        return self.params_product if self.updates is None else _product(self.updates)


PolicyState: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]  # tensors by name, and plain values


Gives: TypeAlias = Literal["weights", "two channels", "a tree", "nothing"]  # what a policy's plans hold


class Policy(Protocol):
    """Says with which weights the nodes mix at mixing t = 0, 1, 2, …"""

    @property
    def gives(self) -> Gives:
        """What its plans hold; an algorithm refuses what it cannot mix with."""
        ...

    @property
    def changes(self) -> bool:
        """Whether its weights may be others at another mixing; some algorithms refuse that."""
        ...

    def observes(self, t: int) -> bool:
        """Whether it will look at the updates of mixing t, which costs a copy of the rows."""
        ...

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """The sketches of the updates that it will ask for at mixing t, if they are all it needs of them."""
        ...

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """What the algorithm needs of the weights that this policy makes, before the first plan.

        Weights that somebody handed over are not changed by it; the algorithm refuses them if they do not fit.
        """
        ...

    def rename_streams(self, name: str) -> None:
        """Draw from other random streams from now on: those of the part `name` of another policy."""
        ...

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """The matrices that it is known to use before anything was observed, to be checked before the first step."""
        ...

    def state(self) -> PolicyState:
        """What its plans depend on besides t and the observation.

        A tensor named "rows" or "columns", or "….rows" or "….columns", has one row per owned node; all others must be
        the same on all processes. A checkpoint may be read by processes that own other nodes.
        """
        ...

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on from such a state."""
        ...

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """The plan of mixing t; it may gather sketches of what it observes."""
        ...


class Stateless:
    """A policy that neither looks nor remembers."""

    gives: Gives = "weights"

    @property
    def changes(self) -> bool:
        """Unless one matrix is all that it knows."""
        return len(set(self.known_matrices())) != 1

    def observes(self, t: int) -> bool:
        """Never."""
        return False

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """Unknown: a subclass that looks gets the updates."""
        return None

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """It makes no weights."""

    def rename_streams(self, name: str) -> None:
        """It draws nothing, unless a subclass does."""

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """None, unless a subclass knows better."""
        return ()

    def state(self) -> PolicyState:
        """Nothing."""
        return {}, {}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Nothing to do."""


def nested(policy: Policy, name: str) -> Policy:
    """A copy of the policy as the part `name` of another one, with random streams of its own.

    Streams are renamed once per level, so that in the end the path of a part inside all of its parents names them.
    """
    part = copy.deepcopy(policy)
    part.rename_streams(name)
    return part


def _product(rounds: tuple[MixingMatrix, ...]) -> FloatArray:
    for W in rounds:
        W.need_whole("what the rounds of a plan do together")
    product: FloatArray = reduce(np.matmul, (W.to_dense() for W in rounds))
    return product
