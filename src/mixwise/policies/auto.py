"""Policies that are chosen when the graph, the labels or the algorithm are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mixwise.graphs import Graph, d_cliques
from mixwise.mixing import MixingMatrix, clique_averaging, exact_average, metropolis_hastings
from mixwise.parts import Count, Positive, part
from mixwise.policies.aware_pairs import AwarePairs
from mixwise.policies.combined import Decoupled
from mixwise.policies.edge_coloring import most_rounds
from mixwise.policies.fixed import Fixed
from mixwise.policies.forecast import forecast
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.pairs import Pairs
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.sketch import CountSketch, Sketch

_MOST_ROUNDS = 16  # per mixing, where no budget says otherwise
_HARDLY = 1.1  # a mixing that looks at the data may take this many times as long
# Where time counts, so much of the disagreement that a step adds may be left by pairs on regular graphs, and on others,
# and by one round to all neighbors. With 0.3, about three times as many steps are needed as with exact averages, which
# may thus have three times as many rounds.
_LEFT, _LEFT_IRREGULAR, _LEFT_BY_ORDINARY, _EXACT = 0.3, 0.52, 0.2, 3


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
    "auto", title="auto: pairs of neighbors in an order planned for the graph",
    does="the policy that did best in the study of mixing policies: pairs; as many rounds as links or a budget ask for",
)  # fmt: skip
@dataclass(frozen=True)
class Auto(Chosen):
    """The gossip policy to start with, by what docs/studies/mixing-policies.md found.

    Pairs of neighbors average one after the other, in an order planned for the graph (`Pairs`): no sketches, and no
    messages but rows. On directed graphs there are no pairs: optimized weights, GME of updates and parameters at
    every mixing, from gathered sketches.

    If the network knows its links, time counts: the fewest rounds that leave at most 0.3 of the disagreement that a
    step adds (0.52 on graphs whose nodes have different degrees), one round to all neighbors (Metropolis-Hastings) if
    that leaves 0.2, or an exact average if that takes at most three times as many rounds. On graphs whose nodes have
    different degrees the pairs are then chosen by the data (`AwarePairs`) where that takes at most a tenth longer, as
    it does for large models on fast links. With a `budget`, bytes count: as many rounds as fit, until a hundredth of
    that disagreement is left.

    Args:
        sketch: how a node's row is compressed, where sketches are used.
        budget: bytes that a node may send per mixing, relative to ordinary gossip in full precision, where every node
            sends its row to all its neighbors. By default as many rounds as in full precision, whatever `wire_dtype`.
    """

    sketch: Sketch = CountSketch(100)
    budget: Positive | None = None

    def choose(self, context: Context) -> Policy:
        """Choose by the graph, the algorithm, the links and the budget."""
        graph = context.graph
        if graph.directed:
            return HeterogeneityAware(sketch=self.sketch, objective="both", regularization=0.02)
        if self.budget is None and context.links is None:
            return Pairs()
        if self.budget is None and not context.needs.symmetric:
            ordinary = Fixed(metropolis_hastings)
            if forecast(ordinary, graph, context.wire_bytes).disagreement <= _LEFT_BY_ORDINARY:
                return ordinary
        rounds = self._rounds(context)
        if self.budget is None and not context.needs.symmetric:
            rounds = _exact_if_quick(rounds, graph)
        return AwarePairs(rounds, self.sketch) if self._may_look(rounds, context) else Pairs(rounds)

    def _may_look(self, rounds: int, context: Context) -> bool:
        """Whether the data is likely to help in choosing the pairs, at hardly any extra time."""
        graph, links, size = context.graph, context.links, context.wire_bytes
        if links is None or self.budget is not None or context.needs.symmetric or graph.is_regular:
            return False
        pairs = (AwarePairs(rounds, self.sketch), Pairs(rounds))
        aware, blind = (forecast(policy, graph, size, links, mixings=2).seconds for policy in pairs)
        return aware <= _HARDLY * blind

    def _rounds(self, context: Context) -> int:
        """The fewest rounds that leave little disagreement, within the budget."""
        graph, needs, most = context.graph, context.needs, _MOST_ROUNDS
        if self.budget is not None:
            degree = 2 * len(graph.edge_array) / graph.n
            fitting = self.budget * degree * context.row_bytes / context.wire_bytes
            most = max(1, int(min(fitting, most_rounds(graph)) + 1e-9))
        if needs.symmetric:  # r rounds forth and r − 1 back
            most = (most + 1) // 2
        enough, mixings = 0.01, 20
        if context.links is not None:
            enough, mixings = (_LEFT if graph.is_regular else _LEFT_IRREGULAR), 60
        rounds = 1
        while rounds < most:
            left = forecast(Pairs(rounds), graph, context.wire_bytes, needs=needs, mixings=mixings)
            if left.disagreement <= enough:
                return rounds
            rounds += max(1, rounds // 4)
        return most


def _exact_if_quick(rounds: int, graph: Graph) -> int:
    """The rounds of an exact average, where they are few enough to save time by saving steps."""
    average = exact_average(graph) if graph.n <= 2 ** (_EXACT * rounds) else None
    return len(average) if average is not None and len(average) <= _EXACT * rounds else rounds


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
