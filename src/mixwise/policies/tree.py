"""Policies that choose a spanning tree, for algorithms that relay along it."""

from __future__ import annotations

from mixwise.errors import GraphError
from mixwise.graphs import Graph, gram_tree
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.chosen_early import ChosenEarly
from mixwise.policies.plan import Gives, Observation, Plan, Stateless


class FixedTree(Stateless):
    """The same spanning tree at every mixing."""

    gives: Gives = "a tree"

    def __init__(self, tree: Graph) -> None:
        check_tree(tree)
        self.tree = tree

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """No matrices, one tree."""
        return Plan((), tree=self.tree)


class HeterogeneityAwareTree(ChosenEarly):
    """A spanning tree chosen by the Gram matrix of the updates, so that what is averaged first is nearly unbiased.

    It is chosen at the first mixing and once more from the mean of the first `looks`; a new tree starts the relay anew.
    """

    gives: Gives = "a tree"

    def choose(self, graph: Graph, gram: FloatArray) -> Plan:
        """No matrices, one tree."""
        return Plan((), tree=gram_tree(graph, gram))


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
