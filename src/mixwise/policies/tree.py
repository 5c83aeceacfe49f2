"""Policies that choose a spanning tree, for algorithms that relay along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mixwise.errors import GraphError, MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.gram import GramEstimate
from mixwise.policies.plan import Observation, Plan, PolicyState, Stateless
from mixwise.sketch import Sketch


class FixedTree(Stateless):
    """The same spanning tree at every mixing."""

    def __init__(self, tree: Graph) -> None:
        check_tree(tree)
        self.tree = tree

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """No matrices, one tree."""
        return Plan((), tree=self.tree)


class HeterogeneityAwareTree:
    """A spanning tree chosen by the Gram matrix of the updates, so that what is averaged first is nearly unbiased.

    The first `looks` mixings look at the updates, each Γ scaled to trace 1; the tree is chosen at the first of them and
    once more, from the mean of all, at the last. A new tree starts the relay anew, so it is kept from then on.
    """

    def __init__(self, looks: int = 10, *, sketch: Sketch | None = None) -> None:
        if looks < 1:
            raise MixingError(f"looks = {looks}; a tree is chosen by at least 1 look at the updates")
        self.looks, self.estimate = looks, GramEstimate(sketch, "updates", 0.0)
        self.tree: Graph | None = None
        self.total: FloatArray | None = None  # the sum of the scaled Γ

    def observes(self, t: int) -> bool:
        """At the first mixings."""
        return t < self.looks

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """It makes no weights."""

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """None: a tree has no matrix."""
        return ()

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """No matrices, one tree."""
        if t < self.looks:
            Gamma = self.estimate.look(t, observed, network)
            Gamma = Gamma / max(float(np.trace(Gamma)), 1e-300)
            self.total = Gamma if self.total is None else self.total + Gamma
        if self.tree is None or t == self.looks - 1:
            assert self.total is not None
            from mixwise.graphs.trees import gram_tree

            self.tree = gram_tree(network.graph, self.total)
        return Plan((), tree=self.tree)

    def state(self) -> PolicyState:
        """The tree, and the sum while it grows."""
        tensors = {}
        if self.tree is not None and self.total is not None:
            tree = torch.from_numpy(self.tree.edge_array.copy())
            tensors = {"tree": tree, "total": torch.from_numpy(self.total.copy())}
        return tensors, {}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on with this tree."""
        if "tree" in tensors:
            self.total = tensors["total"].numpy()
            self.tree = Graph(len(self.total), tensors["tree"].numpy())


class NoMixing(Stateless):
    """No weights at all: for algorithms that average over all nodes, and for nodes on their own."""

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """Nothing."""
        return Plan(())


def check_tree(tree: Graph) -> None:
    """Refuse a graph that is not an undirected tree."""
    if tree.directed:
        raise GraphError("a tree to relay along is undirected; messages travel both ways")
    if not tree.is_connected:
        raise GraphError(
            f"the tree has {len(tree.components)} parts, so no sum reaches all nodes; "
            f"take a spanning tree of a connected graph: spanning_tree(graph)"
        )
    if len(tree.edges) != tree.n - 1:
        raise GraphError(
            f"{len(tree.edges)} edges on {tree.n} nodes make a cycle, around which a sum would count nodes twice; "
            f"take a spanning tree: spanning_tree(graph)"
        )
