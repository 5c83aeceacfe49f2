"""The one place where the words of a configuration become objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from mixwise.algorithms import DSGD, Algorithm, DecoupledDSGD
from mixwise.errors import ConfigError
from mixwise.experiments.config import (
    AlternatingPolicy,
    Cliques,
    DecoupledPolicy,
    FixedPolicy,
    HeterogeneityAwarePolicy,
    PolicyConfig,
    ProductPolicy,
    RandomPolicy,
    RunConfig,
    Scheme,
    SketchConfig,
)
from mixwise.graphs import Graph, parse
from mixwise.mixing import (
    MixingMatrix,
    clique_averaging,
    fastest_mixing,
    max_degree,
    metropolis_hastings,
    uniform,
)
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, Decoupled, Fixed, HeterogeneityAware, Policy, Product, RandomChoice
from mixwise.seeding import numpy_generator, stream
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch
from mixwise.tasks import QuadraticTask, random_quadratics, two_class_quadratics
from mixwise.train import Record, train

SCHEMES: Mapping[str, Callable[[Graph], MixingMatrix]] = {
    "metropolis-hastings": metropolis_hastings,
    "optimal-gap": fastest_mixing,
    "max-degree": max_degree,
    "uniform": uniform,
}
_ALGORITHMS: Mapping[str, Callable[[], Algorithm]] = {"dsgd": DSGD, "decoupled": DecoupledDSGD}


def prepare(config: RunConfig, seed: int) -> Callable[[], Iterator[Record]]:
    """Build all parts of one run, so that a wrong value is found before the first step; call the result to run it."""
    places = base_graph(config, seed)
    order = _order(config, places.n, seed)
    task = _task(config, places.n, seed)
    lr = _step_size(config, task)
    policy = _Policies(places, order, seed).build(config.policy)
    algorithm = _ALGORITHMS[config.algorithm]()
    if (config.algorithm == "decoupled") != isinstance(config.policy, DecoupledPolicy):
        raise ConfigError("algorithm: decoupled and policy.kind: decoupled go together; set both or neither")
    network = SimulatedNetwork(places.permuted(order))
    return lambda: train(task, network, policy, algorithm, lambda rows: torch.optim.SGD(rows, lr=lr), config.steps)


def base_graph(config: RunConfig, seed: int) -> Graph:
    """The graph of places; a random one depends on the seed of the run unless its spec names a seed."""
    return parse(config.graph, seed=stream(seed, "graph"))


def _order(config: RunConfig, n: int, seed: int) -> list[int]:
    if config.placement == "given":
        return list(range(n))
    if config.placement == "random":
        return [int(node) for node in numpy_generator(seed, "placement").permutation(n)]
    return list(config.placement)


def _task(config: RunConfig, n: int, seed: int) -> QuadraticTask:
    make = {"random": random_quadratics, "two": two_class_quadratics}[config.task.classes]
    return make(n, config.task.dim, config.task.noise, seed)


def _step_size(config: RunConfig, task: QuadraticTask) -> float:
    lr = config.optimizer.lr
    if isinstance(lr, str):  # checked: a number, then /L
        return float(lr.removesuffix("/L")) / task.smoothness
    return lr


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
