"""Policies from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixwise.experiments.policy_config import (
    AlternatingPolicy,
    Cliques,
    CyclePolicy,
    DecoupledPolicy,
    EdgeSamplingPolicy,
    FixedPolicy,
    HeterogeneityAwarePolicy,
    HeterogeneityAwareTreePolicy,
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
from mixwise.graphs import Graph, complete, one_peer_exponential
from mixwise.mixing import (
    MixingMatrix,
    base_graph,
    clique_averaging,
    fastest_mixing,
    lazy,
    max_degree,
    metropolis_hastings,
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
    HeterogeneityAwareTree,
    Matcha,
    Matchings,
    NoMixing,
    Policy,
    Product,
    RandomChoice,
)
from mixwise.seeding import stream
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch

SCHEMES: Mapping[str, Callable[[Graph], MixingMatrix]] = {
    "metropolis-hastings": metropolis_hastings,
    "optimal-gap": fastest_mixing,
    "max-degree": max_degree,
    "uniform": uniform,
    "uniform-sender": uniform_sender,
    "lazy-metropolis-hastings": lambda graph: lazy(symmetrized(metropolis_hastings(graph))),
    "full-averaging": lambda graph: uniform(complete(graph.n)),  # a baseline: every node hears all others
}


class PolicyBuilder:
    """Builds policies for nodes placed on a graph; weights are made for the places and go with them to the nodes."""

    def __init__(self, places: Graph, order: list[int], seed: int) -> None:
        self.places, self.order, self.seed = places, order, stream(seed, "policy")

    def build(self, config: PolicyConfig) -> Policy:
        """The policy that a part of a recipe describes."""
        match config:
            case FixedPolicy():
                return Fixed(self._weights(config.weights))
            case RandomPolicy():
                matrices = [self._weights(scheme) for scheme in config.weights]
                return RandomChoice(matrices, config.probabilities, self.seed)
            case AlternatingPolicy():
                return Alternating(*(self.build(policy) for policy in config.policies))
            case ProductPolicy():
                return Product(*(self.build(policy) for policy in config.policies))
            case DecoupledPolicy():
                return Decoupled(self.build(config.params), self.build(config.updates))
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
            case TreePolicy():
                from mixwise.graphs.trees import spanning_tree

                return FixedTree(spanning_tree(self.places, config.shape).permuted(self.order))
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
            alternate_with=None if config.alternate_with is None else self.build(config.alternate_with),
            regularization=config.regularization,
            smoothing=config.smoothing,
            symmetric=config.symmetric,
            growth=config.growth,
            drop_below=config.drop_below,
            on=None if config.graphs is None else self.build(config.graphs),
            kind=config.stochastic,
        )

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
