"""A sparse topology learned by Frank-Wolfe, from the labels of the nodes or from their first updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix, lazy, learn_topology, symmetrized, topology_from_gram
from mixwise.parts import Count, NonNegative, part
from mixwise.policies.controls import Permuted, permuted
from mixwise.policies.estimates import Estimate
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.sketch import CountSketch, Sketch


@part(
    "learned-topology", title="a topology learned from {source}, about {neighbors} neighbors each",
    cite="Le Bars et al. 2023",
    does="a sparse topology learned by Frank-Wolfe from the labels or the updates of the nodes",
)  # fmt: skip
@dataclass(frozen=True)
class LearnedTopology(Policy):
    """Weights on a sparse topology of its own choice (STL-FW, Le Bars et al. 2023).

    Args:
        neighbors: the largest number of nodes that a node sends to, and hears.
        source: "labels": learned once from the label proportions of the nodes; "updates": learned from the Gram matrix
            of the updates at the first mixing, and again from the mean of the first `observe`, each scaled to trace 1.
        regularization: λ of `topology_from_gram`.
        inside: whether it may use only edges of the network's graph.
        observe: how many mixings are observed, with source="updates".
        sketch: how updates are compressed.
        control: "permuted": the labels, or the sketches at every look, in a random order, to tell how much of a gain is
            due to the data.
    """

    neighbors: Count = 2
    source: Literal["labels", "updates"] = "labels"
    regularization: NonNegative = 0.1
    inside: bool = False
    observe: Count = 10
    sketch: Sketch = CountSketch(100)
    control: Permuted | None = None

    @property
    def provides(self) -> Provides:
        """Weights, on edges of its own unless it stays inside of the graph."""
        return Provides(changes=self.source == "updates" and self.observe > 1, own_edges=not self.inside)

    @property
    def _estimate(self) -> Estimate:
        return Estimate(self.sketch, control=self.control)

    def init(self, context: Context) -> State:
        """Learn from the labels, or prepare to look at the updates."""
        if self.source == "updates":
            state = self._estimate.init(context)
            state.shared |= {"looked": 0, "total": None, "chosen_from": None}
            state.scratch["context"] = context
            return state
        counts = context.labels("policy: learned-topology")
        counts = counts if self.control is None else permuted(counts, context.seed, 0)
        shares = counts / counts.sum(axis=1, keepdims=True)
        allowed = context.graph if self.inside else None
        return State(scratch={"W": learn_topology(shares, self.neighbors, self.regularization, allowed=allowed)})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return what was learned from the labels."""
        return (state.scratch["W"],) if self.source == "labels" else ()

    def looks(self, t: int, state: State) -> Look | None:
        """Look at the first mixings that it takes part in."""
        if self.source == "labels" or state.shared["looked"] >= self.observe:
            return None
        return self._estimate.wants(t, state)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return one round with the learned weights."""
        if self.source == "updates":
            self._learn(round, state, network)
        return Plan((state.scratch["W"],))

    def _learn(self, round: Round, state: State, network: Network) -> None:
        shared = state.shared
        if shared["looked"] < self.observe:
            Gamma = self._estimate.gram(round, state, network)
            Gamma = Gamma / max(float(np.trace(Gamma)), 1e-300)
            shared["total"] = Gamma if shared["total"] is None else shared["total"] + Gamma
            shared["looked"] += 1
            if shared["looked"] in (1, self.observe):
                shared["chosen_from"] = shared["total"]
        if state.scratch.get("learned from") is shared["chosen_from"]:
            return
        needs = state.scratch["context"].needs
        allowed = network.graph if self.inside else None
        W = topology_from_gram(shared["chosen_from"], self.neighbors, self.regularization, allowed=allowed)
        if needs.symmetric:
            W = symmetrized(MixingMatrix.from_dense(W.to_dense(), Graph(W.n, W.graph.edge_array)))
        state.scratch |= {"W": lazy(W) if needs.lazy else W, "learned from": shared["chosen_from"]}
