"""Policies that are chosen when the graph, the labels or the algorithm are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mixwise.graphs import d_cliques
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings
from mixwise.parts import Count, Positive, part
from mixwise.policies.aware_pairs import AwarePairs
from mixwise.policies.combined import Decoupled
from mixwise.policies.fixed import Fixed
from mixwise.policies.forecast import forecast
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.pairs import Pairs
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.sketch import CountSketch, Sketch

_MOST_ROUNDS = 16  # per mixing, where no budget says otherwise
_LEFT = 0.2  # of the disagreement that a step adds may be left where time counts


@dataclass(frozen=True)
class Chosen(Policy):
    """A policy that is another one once the context is known; subclasses say which."""

    def choose(self, context: Context) -> Policy:
        """Return the policy for this context."""
        raise NotImplementedError

    def init(self, context: Context) -> State:
        """Choose, and return the state of the choice."""
        policy = self.choose(context)
        return State(parts={"chosen": policy.init(context)}, scratch={"policy": policy})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return the known matrices of the choice."""
        policy: Policy = state.scratch["policy"]
        return policy.matrices(state.parts["chosen"])

    def looks(self, t: int, state: State) -> Look | None:
        """Return what the choice wants to see."""
        policy: Policy = state.scratch["policy"]
        return policy.looks(t, state.parts["chosen"])

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the plan of the choice."""
        policy: Policy = state.scratch["policy"]
        return policy.plan(round, state.parts["chosen"], network)


@part(
    "auto", title="auto: pairs of neighbors, chosen by their disagreement where that helps",
    does="the policy that did best in the study of mixing policies: pairs, planned for regular graphs, chosen by the "
    "data on others",
)  # fmt: skip
@dataclass(frozen=True)
class Auto(Chosen):
    """The gossip policy to start with, by what docs/studies/mixing-policies.md found.

    Pairs of neighbors average one after the other, without any message beyond those between neighbors: in an order
    planned for the graph where all nodes have the same degree, or where the algorithm needs symmetric weights (D²,
    EXTRA); chosen by their disagreement on other graphs. On directed graphs there are no pairs: optimized weights,
    GME of updates and parameters at every mixing, from gathered sketches.

    If the network knows its links, time counts: the fewest rounds that leave at most 0.2 of the disagreement that a
    step adds, one round to all neighbors (Metropolis-Hastings) if that does it, and choices by the data only if they
    make a mixing at most a tenth longer. With a `budget`, bytes count: as many rounds as fit, until a hundredth of
    that disagreement is left.

    Args:
        sketch: how a node's row is compressed, where the choice depends on the data.
        budget: bytes that a node may send per mixing, relative to ordinary gossip in full precision, where every node
            sends its row to all its neighbors. By default as many rounds as in full precision, whatever `wire_dtype`.
    """

    sketch: Sketch = CountSketch(100)
    budget: Positive | None = None

    def choose(self, context: Context) -> Policy:
        """Choose by the graph, the algorithm, the links and the budget."""
        graph, symmetric = context.graph, context.needs.symmetric
        if graph.directed:
            return HeterogeneityAware(sketch=self.sketch, objective="both", regularization=0.02)
        if context.links is not None and self.budget is None and not symmetric:
            ordinary = Fixed(metropolis_hastings)
            if forecast(ordinary, graph, context.wire_bytes).disagreement <= _LEFT:
                return ordinary
        rounds = None if context.links is None and self.budget is None else self._rounds(context)
        blind, aware = Pairs(rounds), AwarePairs(rounds, self.sketch)
        if graph.is_regular or symmetric:
            return blind
        if rounds is None:
            return aware
        slow, fast = (forecast(p, graph, context.wire_bytes, context.links, mixings=8) for p in (aware, blind))
        fits = self.budget is None or slow.bytes <= self._bytes(context)
        return aware if fits and slow.seconds <= 1.1 * fast.seconds else blind

    def _bytes(self, context: Context) -> float:
        """Bytes that a node may send per mixing, on average."""
        return (self.budget or 1.0) * 2 * len(context.graph.edge_array) / context.graph.n * context.row_bytes

    def _rounds(self, context: Context) -> int:
        """The fewest rounds that leave little disagreement, within the budget."""
        graph, needs, most = context.graph, context.needs, _MOST_ROUNDS
        if self.budget is not None:
            most = max(1, int(self._bytes(context) / context.wire_bytes + 1e-9))
        if needs.symmetric:  # r rounds forth and r − 1 back
            most = (most + 1) // 2
        enough, mixings = (0.01, 20) if context.links is None else (_LEFT, 60)
        rounds = 1
        while rounds < most:
            left = forecast(Pairs(rounds), graph, context.wire_bytes, needs=needs, mixings=mixings)
            if left.disagreement <= enough:
                return rounds
            rounds += max(1, rounds // 4)
        return most


@part(
    "d-cliques", title="cliques of {size} that together hold all labels", cite="Bellet et al. 2022",
    does="cliques whose labels look like the whole data set, for `algorithm: decoupled`",
)  # fmt: skip
@dataclass(frozen=True)
class DCliques(Chosen):
    """D-Cliques: cliques whose labels look like the whole data set; updates are averaged inside (Bellet et al. 2022).

    Args:
        size: nodes per clique.
        between: how cliques are connected.
    """

    provides = Provides("two channels", changes=False, own_edges=True)

    size: Count = 4
    between: Literal["ring", "full"] = "ring"

    def choose(self, context: Context) -> Policy:
        """Build the cliques from the label counts of the nodes."""
        found = d_cliques(context.labels("policy: d-cliques"), self.size, context.seed, self.between)
        updates = Fixed(clique_averaging(found.cliques, found.graph))
        return Decoupled(params=Fixed(metropolis_hastings(found.graph)), updates=updates)
