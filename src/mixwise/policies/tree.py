"""A spanning tree in place of weights, for algorithms that relay along it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mixwise.errors import GraphError
from mixwise.graphs import Graph, spanning_tree
from mixwise.parts import part
from mixwise.protocols import Context, Network, Plan, Policy, Provides, Round, State


@part("tree", title="a spanning tree ({shape})", does="a spanning tree of the graph, for `algorithm: relay`")
@dataclass(frozen=True)
class Tree(Policy):
    """The same spanning tree at every mixing.

    Args:
        shape: "bfs", a tree with short paths; "chain", a path through all nodes; or a tree of your own.
    """

    provides = Provides("a tree", changes=False)

    shape: Literal["bfs", "chain"] | Graph = "bfs"

    def __post_init__(self) -> None:
        if isinstance(self.shape, Graph):
            check_tree(self.shape)

    def init(self, context: Context) -> State:
        """Find the tree."""
        if isinstance(self.shape, Graph):
            return State(scratch={"tree": self.shape})
        tree = spanning_tree(context.places, self.shape)
        return State(scratch={"tree": tree if context.order is None else tree.permuted(context.order)})

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the tree."""
        return Plan((), tree=state.scratch["tree"])


def check_tree(tree: Graph) -> None:
    """Reject a graph that is not an undirected tree: along a cycle, a sum would count nodes twice."""
    if tree.directed or not tree.is_connected or len(tree.edges) != tree.n - 1:
        kind = "a directed graph" if tree.directed else f"a graph with {len(tree.components)} components"
        raise GraphError(
            f"{kind} and {len(tree.edges)} edges on {tree.n} nodes is no tree to relay along; messages travel "
            f"both ways along n − 1 edges that connect all nodes: use spanning_tree(graph)"
        )
