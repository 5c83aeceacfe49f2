"""Plans that are made before the first mixing: the same one at every mixing, or several in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from mixwise.errors import GraphError
from mixwise.graphs import Graph, spanning_tree
from mixwise.mixing import MixingMatrix
from mixwise.parts import FAMILIES, is_reference, part, words
from mixwise.protocols import Context, Network, Plan, Policy, Provides, Round, State

Weights: TypeAlias = Annotated[MixingMatrix | str | Callable[[Graph], MixingMatrix], FAMILIES["scheme"]]


@dataclass(frozen=True)
class InTurn(Policy):
    """Plan t mod k at mixing t, of k plans that depend on the context alone; subclasses make them."""

    def plans(self, context: Context) -> Sequence[Plan]:
        """Return the k plans."""
        raise NotImplementedError

    def init(self, context: Context) -> State:
        """Make the plans."""
        return State(scratch={"plans": self.plans(context)})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return the matrices of all plans, each once."""
        return tuple(dict.fromkeys(W for plan in state.scratch["plans"] for W in plan.params))

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the plan whose turn it is."""
        plans: Sequence[Plan] = state.scratch["plans"]
        return plans[round.t % len(plans)]


@part("fixed", title="the same weights at every mixing", does="the same weights at every mixing")
@dataclass(frozen=True)
class Fixed(InTurn):
    """The same matrix at every mixing.

    Args:
        weights: a matrix; or a weighting scheme, by name or as a function of the graph, which makes one for the run's
            graph.
    """

    weights: Weights

    @property
    def provides(self) -> Provides:
        """The same weights throughout; those of a reference may leave the graph."""
        reference = not isinstance(self.weights, MixingMatrix) and is_reference(self.weights)
        return Provides(changes=False, own_edges=reference)

    def plans(self, context: Context) -> Sequence[Plan]:
        """Make the weights for the graph, and return one round with them."""
        if isinstance(self.weights, MixingMatrix):
            return [Plan((self.weights,))]
        assert not isinstance(self.weights, str)  # the constructor has looked it up
        return [Plan((context.placed(self.weights(context.places)),))]

    def describe(self) -> str:
        """Return the words of the scheme."""
        return "fixed weights" if isinstance(self.weights, MixingMatrix) else words(self.weights)


@part("none", title="no gossip weights", does="no weights, for `algorithm: all-reduce` and `local-sgd`")
@dataclass(frozen=True)
class NoMixing(InTurn):
    """No weights, for algorithms that average over all nodes."""

    provides = Provides("nothing", changes=False)

    def plans(self, context: Context) -> Sequence[Plan]:
        """Return an empty plan."""
        return [Plan(())]


@part("tree", title="a spanning tree ({shape})", does="a spanning tree of the graph, for `algorithm: relay`")
@dataclass(frozen=True)
class Tree(InTurn):
    """The same spanning tree at every mixing, for algorithms that relay along it.

    Args:
        shape: "bfs", a tree with short paths; "chain", a path through all nodes; or a tree of your own.
    """

    provides = Provides("a tree", changes=False)

    shape: Literal["bfs", "chain"] | Graph = "bfs"

    def __post_init__(self) -> None:
        if isinstance(self.shape, Graph):
            check_tree(self.shape)

    def plans(self, context: Context) -> Sequence[Plan]:
        """Find the tree."""
        if isinstance(self.shape, Graph):
            return [Plan((), tree=self.shape)]
        tree = spanning_tree(context.places, self.shape)
        return [Plan((), tree=tree if context.order is None else tree.permuted(context.order))]


def check_tree(tree: Graph) -> None:
    """Reject a graph that is not an undirected tree: along a cycle, a sum would count nodes twice."""
    if tree.directed or not tree.is_connected or len(tree.edges) != tree.n - 1:
        kind = "a directed graph" if tree.directed else f"a graph with {len(tree.components)} components"
        raise GraphError(
            f"{kind} and {len(tree.edges)} edges on {tree.n} nodes is no tree to relay along; messages travel "
            f"both ways along n − 1 edges that connect all nodes: use spanning_tree(graph)"
        )
