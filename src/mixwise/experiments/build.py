"""The one place where the words of a configuration become objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mixwise.algorithms import D2, DSGD, Algorithm, DecoupledDSGD
from mixwise.errors import ConfigError
from mixwise.experiments.build_task import build_optimizer, build_scheduler, build_task, run_length
from mixwise.experiments.config import RunConfig
from mixwise.experiments.policy_config import (
    AlternatingPolicy,
    Cliques,
    DecoupledPolicy,
    FixedPolicy,
    HeterogeneityAwarePolicy,
    PolicyConfig,
    ProductPolicy,
    RandomPolicy,
    Scheme,
    SketchConfig,
)
from mixwise.graphs import Graph, complete, parse
from mixwise.mixing import (
    MixingMatrix,
    clique_averaging,
    fastest_mixing,
    lazy,
    max_degree,
    metropolis_hastings,
    symmetrized,
    uniform,
)
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, Decoupled, Fixed, HeterogeneityAware, Policy, Product, RandomChoice
from mixwise.seeding import numpy_generator, stream
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch
from mixwise.train import Record, Training, records

SCHEMES: Mapping[str, Callable[[Graph], MixingMatrix]] = {
    "metropolis-hastings": metropolis_hastings,
    "optimal-gap": fastest_mixing,
    "max-degree": max_degree,
    "uniform": uniform,
    "lazy-metropolis-hastings": lambda graph: lazy(symmetrized(metropolis_hastings(graph))),
    "full-averaging": lambda graph: uniform(complete(graph.n)),  # a baseline: every node hears all others
}
_ALGORITHMS: Mapping[str, Callable[[], Algorithm]] = {"dsgd": DSGD, "decoupled": DecoupledDSGD, "d2": D2}


@dataclass(frozen=True)
class Prepared:
    """A run that has been checked and can start."""

    steps: int
    start: Callable[[], Training]
    record_every: int
    evaluate_every: int
    checkpoint_every: int

    def records_of(self, training: Training) -> Iterator[Record]:
        """The records from where the training is to the end."""
        return records(training, self.steps, self.record_every, self.evaluate_every)

    def __call__(self) -> Iterator[Record]:
        """Run it from the start."""
        return self.records_of(self.start())


def prepare(config: RunConfig, seed: int) -> Prepared:
    """Build all parts of one run, so that a wrong value is found before the first step."""
    places = base_graph(config, seed)
    order = _order(config, places.n, seed)
    task = build_task(config, places.n, seed)
    steps = run_length(config, task)
    optimizer, scheduler = build_optimizer(config, task), build_scheduler(config, steps)
    if (config.algorithm == "decoupled") != isinstance(config.policy, DecoupledPolicy):
        raise ConfigError("algorithm: decoupled and policy.kind: decoupled go together; set both or neither")
    graph = places.permuted(order)
    _Policies(places, order, seed).build(config.policy)  # a wrong value is found now; the run makes its own

    def start() -> Training:
        policy = _Policies(places, order, seed).build(config.policy)
        algorithm = _ALGORITHMS[config.algorithm]()
        network = SimulatedNetwork(graph)
        return Training(task, network, policy, algorithm, optimizer, scheduler=scheduler, clip=config.optimizer.clip)

    return Prepared(
        steps,
        start,
        config.record_every,
        config.evaluate_every or (1 if config.task.kind == "quadratics" else steps),
        config.checkpoint_every or max(1, steps // 4),
    )


def base_graph(config: RunConfig, seed: int) -> Graph:
    """The graph of places; a random one depends on the seed of the run unless its spec names a seed."""
    return parse(config.graph, seed=stream(seed, "graph"))


def _order(config: RunConfig, n: int, seed: int) -> list[int]:
    if config.placement == "given":
        return list(range(n))
    if config.placement == "random":
        return [int(node) for node in numpy_generator(seed, "placement").permutation(n)]
    return list(config.placement)


def scheme_weights(scheme: Scheme | Cliques, graph: Graph) -> MixingMatrix:
    """Weights by the name of their scheme, or averaging in cliques."""
    return clique_averaging(scheme.cliques, graph) if isinstance(scheme, Cliques) else SCHEMES[scheme](graph)


class _Policies:
    """Builds policies for nodes placed on a graph; weights are made for the places and go with them to the nodes."""

    def __init__(self, places: Graph, order: list[int], seed: int) -> None:
        self.places, self.order, self.seed = places, order, seed

    def build(self, config: PolicyConfig) -> Policy:
        match config:
            case FixedPolicy():
                return Fixed(self._weights(config.weights))
            case RandomPolicy():
                matrices = [self._weights(scheme) for scheme in config.weights]
                return RandomChoice(matrices, config.probabilities, stream(self.seed, "policy"))
            case AlternatingPolicy():
                return Alternating(*(self.build(policy) for policy in config.policies))
            case ProductPolicy():
                return Product(*(self.build(policy) for policy in config.policies))
            case DecoupledPolicy():
                return Decoupled(self.build(config.params), self.build(config.updates))
            case HeterogeneityAwarePolicy():
                return HeterogeneityAware(
                    config.period,
                    sketch=self._sketch(config.sketch),
                    objective=config.objective,
                    alternate_with=None if config.alternate_with is None else self.build(config.alternate_with),
                    regularization=config.regularization,
                    smoothing=config.smoothing,
                    symmetric=config.symmetric,
                )

    def _weights(self, scheme: Scheme | Cliques) -> MixingMatrix:
        return scheme_weights(scheme, self.places).permuted(self.order)

    def _sketch(self, config: SketchConfig) -> Sketch:
        if config.kind == "exact":
            return ExactSketch()
        kind = GaussianSketch if config.kind == "gaussian" else CountSketch
        return kind(config.dim, seed=stream(self.seed, "policy"))
