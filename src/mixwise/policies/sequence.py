"""Policies whose graph changes from mixing to mixing; the plan of mixing t depends on t and the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mixwise.errors import MixingError
from mixwise.graphs import edge_sample, one_peer_exponential, random_matching
from mixwise.mixing import MixingMatrix, base_graph, lazy, matcha, metropolis_hastings, uniform
from mixwise.parts import Count, Probability, Share, part
from mixwise.policies.edge_coloring import check_rounds, palindrome
from mixwise.policies.fixed import InTurn
from mixwise.protocols import Context, Network, Plan, Policy, Provides, Round, State


@part("cycle", title="a cycle of graphs ({sequence})", does="a sequence of graphs in turn")
@dataclass(frozen=True)
class Cycle(InTurn):
    """Matrix t mod k at mixing t, of k matrices in turn.

    Args:
        sequence: "one-peer-exponential" (an exact average after one turn if n is a power of two), "base-graph" (the
            Base-(k+1) graphs, an exact average for any n), or matrices of your own.
        peers: k of the Base-(k+1) graphs.
    """

    sequence: Literal["one-peer-exponential", "base-graph"] | Sequence[MixingMatrix]
    peers: Count = 1

    def __post_init__(self) -> None:
        if isinstance(self.sequence, str):
            return
        object.__setattr__(self, "sequence", tuple(self.sequence))
        if not self.sequence:
            raise MixingError("a cycle needs at least one matrix")
        sizes = sorted({W.n for W in self.sequence})
        if len(sizes) > 1:
            raise MixingError(f"the matrices of a cycle are for {sizes} nodes; all must mix the same nodes")

    @property
    def provides(self) -> Provides:
        """Weights that change, unless the cycle is one matrix; named sequences have edges of their own."""
        named = isinstance(self.sequence, str)
        return Provides(changes=named or len(set(self.sequence)) > 1, own_edges=named)

    def plans(self, context: Context) -> Sequence[Plan]:
        """Make the matrices for the nodes; each of them is a round."""
        matrices = self.sequence
        if isinstance(matrices, str):
            n, exponential = context.places.n, matrices == "one-peer-exponential"
            made = map(uniform, one_peer_exponential(n)) if exponential else base_graph(n, self.peers)
            matrices = tuple(map(context.placed, made))
        return [Plan((W,)) for W in matrices]


@dataclass(frozen=True)
class _Drawn(Policy):
    """Symmetric matrices, drawn at every mixing; (I + W) / 2 if the algorithm needs lazy weights."""

    def init(self, context: Context) -> State:
        """Keep the context, and draw once, so that wrong values are found before the first step."""
        state = State(scratch={"context": context})
        self.drawn(0, context, state)
        return state

    def drawn(self, t: int, context: Context, state: State) -> tuple[MixingMatrix, ...]:
        """Return the rounds of mixing t."""
        raise NotImplementedError

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the rounds drawn for this mixing; forth and back if the algorithm needs symmetric weights."""
        context: Context = state.scratch["context"]
        rounds = self.drawn(round.t, context, state)
        rounds = tuple(map(lazy, rounds)) if context.needs.lazy else rounds
        return Plan(palindrome(rounds) if context.needs.symmetric else rounds)


@part(
    "matchings", title="random matchings at every mixing",
    does="random maximal matchings of the graph at every mixing, `rounds` of them",
)  # fmt: skip
@dataclass(frozen=True)
class Matchings(_Drawn):
    """A random maximal matching at every mixing, or `rounds` of them: each node averages with at most one other."""

    rounds: Count = 1

    def init(self, context: Context) -> State:
        """Check the number of rounds, and draw once."""
        check_rounds(self.rounds, context.graph)
        return super().init(context)

    def drawn(self, t: int, context: Context, state: State) -> tuple[MixingMatrix, ...]:
        """Return 1/2 and 1/2 for every pair: Metropolis-Hastings where every node has at most one neighbor."""
        seeds = (context.at(f"round {r}").seed if r else context.seed for r in range(self.rounds))
        return tuple(metropolis_hastings(random_matching(context.graph, seed, t)) for seed in seeds)


@part(
    "matcha", title="MATCHA: random matchings with a budget of {budget:g}", cite="Wang et al. 2019",
    does="a share of the graph's matchings, drawn with optimized probabilities",
)  # fmt: skip
@dataclass(frozen=True)
class Matcha(_Drawn):
    """MATCHA (Wang et al. 2019): a share `budget` of the matchings is active on average, important ones more often."""

    budget: Share = 0.5

    def drawn(self, t: int, context: Context, state: State) -> tuple[MixingMatrix, ...]:
        """Return I − α L of the active matchings."""
        if "drawn_from" not in state.scratch:
            state.scratch["drawn_from"] = matcha(context.graph, self.budget)
        return (state.scratch["drawn_from"].draw(context.seed, t),)


@part(
    "edge-sampling", title="each edge with probability {probability:g}, Metropolis-Hastings weights on those drawn",
    does="every edge with a probability, drawn at every mixing; Metropolis-Hastings weights on those drawn",
)  # fmt: skip
@dataclass(frozen=True)
class EdgeSampling(_Drawn):
    """Every edge is active with the given probability, independently at every mixing; Metropolis-Hastings on those."""

    probability: Probability = 0.5

    def drawn(self, t: int, context: Context, state: State) -> tuple[MixingMatrix, ...]:
        """Return Metropolis-Hastings weights on the active edges."""
        return (metropolis_hastings(edge_sample(context.graph, self.probability, context.seed, t)),)
