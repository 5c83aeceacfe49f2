"""Policies that choose a spanning tree, for algorithms that relay along it."""

from __future__ import annotations

from mixwise.errors import GraphError
from mixwise.graphs import Graph
from mixwise.network import Network
from mixwise.policies.plan import Observation, Plan, Stateless


class FixedTree(Stateless):
    """The same spanning tree at every mixing."""

    def __init__(self, tree: Graph) -> None:
        check_tree(tree)
        self.tree = tree

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """No matrices, one tree."""
        return Plan((), tree=self.tree)


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
