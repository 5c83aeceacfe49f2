"""Policies that never change: the same matrix or the same spanning tree at every mixing, or no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from mixwise.errors import GraphError
from mixwise.graphs import Graph, spanning_tree
from mixwise.mixing import MixingMatrix
from mixwise.parts import FAMILIES, part, words
from mixwise.protocols import Context, Network, Plan, Policy, Provides, Round, State

Weights: TypeAlias = Annotated[MixingMatrix | str | Callable[[Graph], MixingMatrix], FAMILIES["scheme"]]


@part("fixed", title="the same weights at every mixing", does="the same weights at every mixing")
@dataclass(frozen=True)
class Fixed(Policy):
    """The same matrix at every mixing.

    Args:
        weights: a matrix; or a weighting scheme, by name or as a function of the graph, which makes one for the run's
            graph.
    """

    provides = Provides(changes=False)

    weights: Weights

    def init(self, context: Context) -> State:
        """Make the weights for the graph."""
        if isinstance(self.weights, MixingMatrix):
            return State(scratch={"W": self.weights})
        assert not isinstance(self.weights, str)  # the constructor has looked it up
        return State(scratch={"W": context.placed(self.weights(context.places))})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return W."""
        return (state.scratch["W"],)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return one round with W."""
        return Plan((state.scratch["W"],))

    def describe(self) -> str:
        """Return the words of the scheme."""
        return "fixed weights" if isinstance(self.weights, MixingMatrix) else words(self.weights)


@part("none", title="no gossip weights", does="no weights, for `algorithm: all-reduce` and `local-sgd`")
@dataclass(frozen=True)
class NoMixing(Policy):
    """No weights, for algorithms that average over all nodes."""

    provides = Provides("nothing", changes=False)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return an empty plan."""
        return Plan(())


@part("tree", title="a spanning tree ({shape})", does="a spanning tree of the graph, for `algorithm: relay`")
@dataclass(frozen=True)
class Tree(Policy):
    """The same spanning tree at every mixing, for algorithms that relay along it.

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
