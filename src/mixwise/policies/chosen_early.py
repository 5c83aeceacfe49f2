"""Policies that look at the updates of the first mixings, choose, and keep their choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix, lazy, symmetrized, topology_from_gram
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.gram import GramEstimate
from mixwise.policies.plan import Gives, Observation, Plan, PolicyState
from mixwise.sketch import Sketch


class ChosenEarly:
    """Chooses at the first mixing, and once more from the mean of the first `looks`, each Γ scaled to trace 1."""

    gives: Gives = "weights"

    def __init__(self, looks: int = 10, *, sketch: Sketch | None = None) -> None:
        if looks < 1:
            raise MixingError(f"looks = {looks}; a choice needs at least 1 look at the updates")
        self.looks, self.estimate = looks, GramEstimate(sketch)
        self.total: FloatArray | None = None  # the sum of the scaled Γ
        self.chosen: Plan | None = None
        self._chosen_from: FloatArray | None = None  # the sum that the choice was made from

    @property
    def changes(self) -> bool:
        """At the last look, if that is not the first one."""
        return self.looks > 1

    def choose(self, graph: Graph, gram: FloatArray) -> Plan:
        """The plan for a Gram matrix; subclasses say how."""
        raise NotImplementedError

    def observes(self, t: int) -> bool:
        """At the first mixings."""
        return t < self.looks

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """One per look."""
        return self.estimate.sketches(t)

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """Nothing to do, unless a subclass makes weights."""

    def rename_streams(self, name: str) -> None:
        """Those of the sketches."""
        self.estimate.rename_streams(name)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """None before the first look."""
        return ()

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """What was chosen."""
        if t < self.looks:
            Gamma = self.estimate.look(t, observed, network)
            Gamma = Gamma / max(float(np.trace(Gamma)), 1e-300)
            self.total = Gamma if self.total is None else self.total + Gamma
        if self._chosen_from is None or t == self.looks - 1:
            self._chosen_from, self.chosen = self.total, None
        if self.chosen is None:  # also after a restart: the same sum gives the same choice
            assert self._chosen_from is not None
            self.chosen = self.choose(network.graph, self._chosen_from)
        return self.chosen

    def state(self) -> PolicyState:
        """The sum of Γ, and what it was when the choice was made."""
        sums = {"total": self.total, "chosen_from": self._chosen_from}
        return {name: torch.from_numpy(value.copy()) for name, value in sums.items() if value is not None}, {}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on with this choice."""
        self.chosen = None
        self.total = tensors["total"].numpy() if "total" in tensors else None
        self._chosen_from = tensors["chosen_from"].numpy() if "chosen_from" in tensors else None


class LearnedTopology(ChosenEarly):
    """A sparse topology learned from the updates by Frank-Wolfe; who talks to whom is its own choice.

    Args:
        neighbors: how many others a node may send to and hear at most.
        regularization: λ of `topology_from_gram`.
        inside: whether it may use edges of the network's graph only.
        looks, sketch: see `ChosenEarly`.
    """

    def __init__(
        self,
        neighbors: int,
        *,
        regularization: float = 0.1,
        inside: bool = False,
        looks: int = 10,
        sketch: Sketch | None = None,
    ) -> None:
        super().__init__(looks, sketch=sketch)
        if neighbors < 1:
            raise MixingError(f"neighbors = {neighbors}; a node talks to at least 1 other")
        self.neighbors, self.regularization, self.inside = neighbors, regularization, inside
        self.symmetric = self.lazy = False

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """Make (W + Wᵀ) / 2, or (I + W) / 2, of what was learned."""
        self.symmetric, self.lazy = self.symmetric or symmetric, self.lazy or lazy

    def choose(self, graph: Graph, gram: FloatArray) -> Plan:
        """One round with the learned weights."""
        allowed = graph if self.inside else None
        W = topology_from_gram(gram, self.neighbors, self.regularization, allowed=allowed)
        if self.symmetric:
            both_ways = Graph(W.n, W.graph.edge_array)
            W = symmetrized(MixingMatrix.from_dense(W.to_dense(), both_ways))
        return Plan((lazy(W) if self.lazy else W,))
