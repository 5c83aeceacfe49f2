"""Policies that do not look at the data: the same matrix at every mixing, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixwise.context import Context
from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix, clique_averaging
from mixwise.mixing.schemes import SCHEMES
from mixwise.needs import Provides
from mixwise.plan import Plan
from mixwise.protocols import Network, Policy
from mixwise.round import Round
from mixwise.state import State


@dataclass(frozen=True)
class Cliques:
    """Full averaging inside groups of places, as a weighting scheme."""

    cliques: tuple[tuple[int, ...], ...]

    def __call__(self, graph: Graph) -> MixingMatrix:
        """Return the weights on a graph."""
        return clique_averaging(self.cliques, graph)


@dataclass(frozen=True)
class Fixed(Policy):
    """The same matrix at every mixing.

    Args:
        weights: a matrix; or the name of a scheme, or a function of the graph, which make one for the run's graph.
    """

    weights: MixingMatrix | str | Callable[[Graph], MixingMatrix] = "metropolis-hastings"

    def __post_init__(self) -> None:
        if isinstance(self.weights, str) and self.weights not in SCHEMES:
            raise MixingError(f"weights = {self.weights!r}; choose {', '.join(SCHEMES)}, or pass a mixing matrix")

    @property
    def provides(self) -> Provides:
        """Weights that never change."""
        return Provides(changes=False)

    def init(self, context: Context) -> State:
        """Make the weights for the graph."""
        if isinstance(self.weights, MixingMatrix):
            return State(scratch={"W": self.weights})
        scheme = SCHEMES[self.weights] if isinstance(self.weights, str) else self.weights
        return State(scratch={"W": context.placed(scheme(context.places))})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return W."""
        return (state.scratch["W"],)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return one round with W."""
        return Plan((state.scratch["W"],))


@dataclass(frozen=True)
class NoMixing(Policy):
    """No weights, for algorithms that average over all nodes."""

    @property
    def provides(self) -> Provides:
        """Nothing."""
        return Provides("nothing", changes=False)

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return an empty plan."""
        return Plan(())
