"""Policies from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixwise.data.partition import IntArray
from mixwise.errors import ConfigError
from mixwise.experiments.policy_config import (
    AlternatingPolicy,
    AutoPolicy,
    Cliques,
    CyclePolicy,
    DCliquesPolicy,
    DecoupledPolicy,
    EdgeSamplingPolicy,
    FixedPolicy,
    HeterogeneityAwareMatchingsPolicy,
    HeterogeneityAwarePolicy,
    HeterogeneityAwareTreePolicy,
    LearnedTopologyPolicy,
    MatchaPolicy,
    MatchingsPolicy,
    NonePolicy,
    PolicyConfig,
    ProductPolicy,
    RandomPolicy,
    Scheme,
    SketchConfig,
    TreePolicy,
)
from mixwise.graphs import Graph, complete, d_cliques, one_peer_exponential, spanning_tree
from mixwise.mixing import (
    MixingMatrix,
    base_graph,
    clique_averaging,
    lazy,
    learn_topology,
    max_degree,
    metropolis_hastings,
    optimal_gap,
    symmetrized,
    uniform,
    uniform_sender,
)
from mixwise.policies import (
    Alternating,
    Cycle,
    Decoupled,
    EdgeSampling,
    Fixed,
    FixedTree,
    HeterogeneityAware,
    HeterogeneityAwareMatchings,
    HeterogeneityAwareTree,
    LearnedTopology,
    Matcha,
    Matchings,
    NoMixing,
    Policy,
    Product,
    RandomChoice,
    auto_policy,
)
from mixwise.seeding import stream
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch

SCHEMES: Mapping[str, Callable[[Graph], MixingMatrix]] = {
    "metropolis-hastings": metropolis_hastings,
    "optimal-gap": optimal_gap,
    "max-degree": max_degree,
    "uniform": uniform,
    "uniform-sender": uniform_sender,
    "lazy-metropolis-hastings": lambda graph: lazy(symmetrized(metropolis_hastings(graph))),
    "full-averaging": lambda graph: uniform(complete(graph.n)),  # a baseline: every node hears all others
}


class PolicyBuilder:
    """Builds policies for nodes placed on a graph; weights are made for the places and go with them to the nodes."""

    def __init__(
        self,
        places: Graph,
        order: list[int],
        seed: int,
        label_counts: IntArray | None = None,
        *,
        symmetric: bool = False,
    ) -> None:
        self.symmetric = symmetric  # whether the algorithm needs symmetric weights: the best policy is another one then
        self.places, self.order, self.seed = places, order, stream(seed, "policy")
        self.label_counts = label_counts  # (n, classes), of the nodes; None if the task has no labels

    def build(self, config: PolicyConfig) -> Policy:
        """The policy that a part of a recipe describes."""
        match config:
            case FixedPolicy():
                return Fixed(self._weights(config.weights))
            case RandomPolicy():
                return RandomChoice([self.build(policy) for policy in config.policies], config.probabilities, self.seed)
            case AlternatingPolicy():
                return Alternating(*(self.build(policy) for policy in config.policies))
            case ProductPolicy():
                return Product(*(self.build(policy) for policy in config.policies))
            case DecoupledPolicy():
                return Decoupled(self.build(config.params), self.build(config.updates))
            case AutoPolicy():
                return auto_policy(self._graph, symmetric=self.symmetric, sketch=self._sketch(SketchConfig()))
            case HeterogeneityAwarePolicy():
                return self._aware(config)
            case CyclePolicy():
                return Cycle([W.permuted(self.order) for W in self._sequence(config)])
            case MatchingsPolicy():
                return Matchings(self._graph, self.seed)
            case MatchaPolicy():
                return Matcha(self._graph, config.budget, self.seed)
            case EdgeSamplingPolicy():
                return EdgeSampling(self._graph, config.probability, self.seed)
            case DCliquesPolicy():
                found = d_cliques(self._labels(config.kind), config.size, self.seed, config.between)
                updates = Fixed(clique_averaging(found.cliques, found.graph))
                return Decoupled(params=Fixed(metropolis_hastings(found.graph)), updates=updates)
            case LearnedTopologyPolicy():
                return self._learned(config)
            case TreePolicy():
                return FixedTree(spanning_tree(self.places, config.shape).permuted(self.order))
            case HeterogeneityAwareMatchingsPolicy():
                return HeterogeneityAwareMatchings(
                    config.rounds,
                    sketch=self._sketch(config.sketch),
                    objective=config.objective,
                    balance=config.balance,
                )
            case HeterogeneityAwareTreePolicy():
                return HeterogeneityAwareTree(config.looks, sketch=self._sketch(config.sketch))
            case NonePolicy():
                return NoMixing()

    @property
    def _graph(self) -> Graph:
        """The graph of the nodes."""
        return self.places.permuted(self.order)

    def _aware(self, config: HeterogeneityAwarePolicy) -> HeterogeneityAware:
        return HeterogeneityAware(
            config.period,
            sketch=self._sketch(config.sketch),
            objective=config.objective,
            balance=config.balance,
            alternate_with=None if config.alternate_with is None else self.build(config.alternate_with),
            regularization=config.regularization,
            smoothing=config.smoothing,
            symmetric=config.symmetric,
            growth=config.growth,
            drop_below=config.drop_below,
            graphs=None if config.graphs is None else self.build(config.graphs),
            kind=config.stochastic,
            solver=config.solver,
            tolerance=config.tolerance,
            max_iterations=config.max_iterations,
        )

    def _learned(self, config: LearnedTopologyPolicy) -> Policy:
        if config.source == "updates":
            return LearnedTopology(config.neighbors, regularization=config.regularization, inside=config.inside)
        counts = self._labels(config.kind)
        allowed = self._graph if config.inside else None
        shares = counts / counts.sum(axis=1, keepdims=True)
        return Fixed(learn_topology(shares, config.neighbors, config.regularization, allowed=allowed))

    def _labels(self, kind: str) -> IntArray:
        if self.label_counts is None:
            raise ConfigError(f"policy.kind: {kind} needs a task with labels; take task.kind: classification")
        return self.label_counts

    def _sequence(self, config: CyclePolicy) -> list[MixingMatrix]:
        if config.sequence == "base-graph":
            return list(base_graph(self.places.n, config.peers))
        return [uniform(graph) for graph in one_peer_exponential(self.places.n)]

    def _weights(self, scheme: Scheme | Cliques) -> MixingMatrix:
        return scheme_weights(scheme, self.places).permuted(self.order)

    def _sketch(self, config: SketchConfig) -> Sketch:
        if config.kind == "exact":
            return ExactSketch()
        kind = GaussianSketch if config.kind == "gaussian" else CountSketch
        return kind(config.dim, seed=self.seed)


def scheme_weights(scheme: Scheme | Cliques, graph: Graph) -> MixingMatrix:
    """Weights by the name of their scheme, or averaging in cliques."""
    return clique_averaging(scheme.cliques, graph) if isinstance(scheme, Cliques) else SCHEMES[scheme](graph)
