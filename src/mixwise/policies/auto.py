"""Policies that are chosen when the graph, the labels or the algorithm are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mixwise.graphs import d_cliques
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings
from mixwise.parts import Count, part
from mixwise.policies.aware_pairs import AwarePairs
from mixwise.policies.combined import Decoupled
from mixwise.policies.fixed import Fixed
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.pairs import Pairs
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.sketch import CountSketch, Sketch


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
    """

    sketch: Sketch = CountSketch(100)

    def choose(self, context: Context) -> Policy:
        """Choose by the graph and the algorithm."""
        if context.graph.directed:
            return HeterogeneityAware(sketch=self.sketch, objective="both", regularization=0.02)
        return Pairs() if context.graph.is_regular or context.needs.symmetric else AwarePairs(sketch=self.sketch)


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
