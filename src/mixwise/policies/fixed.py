"""Policies that do not look at the data: the same matrix at every mixing, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from mixwise.graphs import Graph
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
