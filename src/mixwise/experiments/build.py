"""Builds a run from its configuration and checks it before the first step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mixwise.errors import ConfigError
from mixwise.experiments.build_optimizer import build_optimizer, build_scheduler
from mixwise.experiments.config import LinkTimes, RunConfig
from mixwise.experiments.memory import Need, check_memory
from mixwise.graphs import Graph, parse
from mixwise.mixing import gram_matrix, optimize_placement
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Link, Links, LossyNetwork, Network, SimulatedNetwork
from mixwise.network.survivors import remaining_graph
from mixwise.network.world import World
from mixwise.parts import supply, words
from mixwise.protocols import Context
from mixwise.seeding import numpy_generator, stream
from mixwise.tasks import ModuleTask, QuadraticTask, Task
from mixwise.training import Record, Training, records
from mixwise.training.training import Step


@dataclass(frozen=True)
class Prepared:
    """A run that has been checked and is ready to start."""

    steps: int
    nodes: int
    start: Callable[[], Training]
    start_with: Callable[[Sequence[int]], Training]  # with these nodes only, after others were lost
    record_every: int
    evaluate_every: int
    checkpoint_every: int
    need: Need | None = None  # of memory, if it is much and was looked at

    def records_of(self, training: Training, on_step: Callable[[Step], None] = lambda step: None) -> Iterator[Record]:
        """Yield the records from the training's current step to the end; `on_step` is called after every step."""
        return records(training, self.steps, self.record_every, self.evaluate_every, on_step)

    def __call__(self) -> Iterator[Record]:
        """Run from the beginning and yield the records."""
        return self.records_of(self.start())


def prepare(config: RunConfig, seed: int, world: World | None = None, *, check: bool = True) -> Prepared:
    """Build one run, so that a wrong value is reported before the first step.

    Every process of the world builds the same run and owns its share of the nodes. With `check`, the run is started
    once to see that its parts fit together; all processes must take part in that.
    """
    world = world or World()
    places = base_graph(config, seed)
    task = build_task(config, places.n, seed)
    steps = _run_length(config, task)
    optimizer, scheduler = build_optimizer(config.optimizer, task), build_scheduler(config.schedule, steps)
    algorithm, policy = config.part("algorithm"), config.part("policy")

    def training(own: Task, network: Network, context: Context) -> Training:
        made = Training(
            own,
            network,
            policy,
            algorithm,
            optimizer,
            scheduler=scheduler,
            clip=config.optimizer.clip,
            local_steps=config.local_steps,
            context=context,
        )
        made.survives = world.survives
        return made

    def rehearsal(short: Task) -> Training:
        short.label_counts = task.label_counts
        return training(short, _network(config, places, None, World(), seed), Context(places, seed=seed))

    need = check_memory(task, places, world, rehearsal) if check else None  # before any rows are made

    order = _order(config, places, task, seed)
    graph = places.permuted(order)
    links = None if config.links is None else _links(config.links, places).permuted(order)

    def start() -> Training:
        return training(task, _network(config, graph, links, world, seed), Context(places, order, seed))

    def start_with(nodes: Sequence[int]) -> Training:
        if len(nodes) == graph.n:
            return start()
        left = remaining_graph(graph, nodes)
        return training(task.restricted(nodes), world.network(left, config.device), Context(left, seed=seed))

    if check:
        start()  # reports a wrong value or combination; the run itself starts again
        if need is not None:
            gc.collect()  # schedulers and optimizers refer to each other, which keeps the rows alive
    return Prepared(
        steps,
        graph.n,
        start,
        start_with,
        config.record_every,
        config.evaluate_every or (1 if isinstance(task, QuadraticTask) else steps),
        config.checkpoint_every or max(1, steps // 4),
        need,
    )


def _network(config: RunConfig, graph: Graph, links: Links | None, world: World, seed: int) -> Network:
    """Return the network of the world; lost messages and simulated link times are for simulations only."""
    if config.message_loss == 0 and links is None:
        return world.network(graph, config.device)
    if world.size > 1 and config.message_loss > 0:
        raise ConfigError("message_loss is for simulations, but this run has several processes; leave it out")
    if world.size > 1:
        raise ConfigError("links are for simulations; with several processes, time is measured; leave them out")
    if config.message_loss == 0:
        return SimulatedNetwork(graph, links)
    return LossyNetwork(graph, config.message_loss, stream(seed, "network"), links)


def _links(config: LinkTimes, places: Graph) -> Links:
    """Return the links between the places of a graph."""
    usual = Link(config.latency, config.bandwidth)
    edges = {}
    known = {tuple(sorted(edge)) for edge in places.edges}
    for name, different in config.edges.items():
        i, j = sorted(map(int, name.split("-")))
        if (i, j) not in known:
            raise ConfigError(f"links.edges: the graph has no edge {name}; name one that mixwise graph shows")
        latency = usual.latency if different.latency is None else different.latency
        edges[i, j] = Link(latency, usual.bandwidth if different.bandwidth is None else different.bandwidth)
    return Links(usual, edges)


def _run_length(config: RunConfig, task: Task) -> int:
    """Return the number of steps; in an epoch, an average node sees its data once."""
    if config.epochs is None:
        assert config.steps is not None
        return config.steps
    if not isinstance(task, ModuleTask):
        raise ConfigError(f"epochs = {config.epochs:g}: {words(config.part('task'))} have no epochs; give steps")
    return max(1, round(config.epochs * len(task.data) / (task.nodes * task.batch)))


def build_task(config: RunConfig, nodes: int, seed: int) -> Task:
    """Build the task of a run over this many nodes."""
    task: Task = supply(config.part("task"), nodes=nodes, seed=seed, run=config)
    return task


def base_graph(config: RunConfig, seed: int) -> Graph:
    """Build the graph of places; a random graph depends on the seed of the run, unless its spec names a seed."""
    return parse(config.graph, seed=stream(seed, "graph"))


def _order(config: RunConfig, places: Graph, task: Task, seed: int) -> list[int]:
    """Return the node at each place."""
    if config.placement == "given":
        return list(range(places.n))
    if config.placement == "random":
        return [int(node) for node in numpy_generator(seed, "placement").permutation(places.n)]
    if config.placement == "gme":
        return list(optimize_placement(_first_gram(task), places, seed=seed).order)
    return list(config.placement)


def _first_gram(task: Task, looks: int = 10) -> FloatArray:
    """Return the sum of the Gram matrices of the first gradients, over a few batches."""
    X = task.initial(range(task.nodes))
    grams = [gram_matrix(task.losses_and_gradients(X, range(task.nodes), step)[1]) for step in range(looks)]
    return sum(grams[1:], grams[0])
