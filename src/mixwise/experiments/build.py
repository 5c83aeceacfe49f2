"""Builds a run from its configuration and checks it before the first step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from mixwise.data import Partition
from mixwise.errors import ConfigError
from mixwise.experiments.config import LinkTimes, Optimizer, RunConfig, Schedule
from mixwise.experiments.memory import Need, check_memory
from mixwise.experiments.pairing import Start
from mixwise.graphs import Graph, parse
from mixwise.mixing import gram_matrix, optimize_placement
from mixwise.network import Link, Links, Network
from mixwise.network.building import simulated
from mixwise.network.wire import as_wire_dtype
from mixwise.network.world import World
from mixwise.parts import supply, words
from mixwise.protocols import Context
from mixwise.report.records import thinned
from mixwise.seeding import numpy_generator, stream
from mixwise.tasks import ModuleTask, QuadraticTask, Task
from mixwise.training import Record, Training, factor, records
from mixwise.training.loop import RECORDED, rounding_note, usual_evaluation, whole_rounds
from mixwise.training.run_log import graph_scene, method_words, neighborhood
from mixwise.training.training import OptimizerFactory, SchedulerFactory, Step

_OPTIMIZERS: Mapping[str, tuple[Callable[..., torch.optim.Optimizer], set[str]]] = {  # with the options that each has
    "sgd": (torch.optim.SGD, {"momentum", "nesterov"}),
    "adam": (torch.optim.Adam, {"betas", "eps"}),
    "adamw": (torch.optim.AdamW, {"betas", "eps"}),
    "rmsprop": (torch.optim.RMSprop, {"momentum", "eps"}),
    "adagrad": (torch.optim.Adagrad, set()),
}
_MAX_NODES = 1_000_000
_MAX_NODE_LINES, _MAX_NODE_NUMBERS = 100, 100_000  # of nodes.jsonl
_FIRST_BATCHES = 10  # whose gradients the placement gme fits


@dataclass(frozen=True)
class Prepared:
    """A run that has been checked and is ready to start.

    Attributes:
        steps, nodes: the number of steps and of nodes.
        record_every, evaluate_every: the number of steps from one record, or evaluation, to the next.
        graph, placement: in words, for `scene.json`.
        start: makes the training of all nodes, or, after others were lost, that of the nodes that it is given.
        need: the estimated memory, if it is large and was checked.
        checkpoint_every: the number of steps from one checkpoint to the next.
        tensorboard: whether to write files for TensorBoard.
        metrics: the names of what its records can hold; None if only the task knows.
        begun: what it starts with, for the runs of a comparison, which must be paired; None if it was not checked.
        note: what was rounded up to whole rounds of local steps, in words; empty if nothing.
    """

    steps: int
    nodes: int
    record_every: int
    evaluate_every: int
    graph: str
    placement: str | list[int]
    start: Callable[[], Training]
    need: Need | None
    checkpoint_every: int
    tensorboard: bool
    metrics: tuple[str, ...] | None = None
    note: str = ""
    begun: Start | None = None

    def method(self, training: Training) -> dict[str, Any]:
        """The graph, the algorithm and the policy in words."""
        return method_words(self.graph, self.placement, training.policy, training.algorithm)

    def scene(self, training: Training) -> dict[str, Any]:
        """The graph, the labels that each node holds, and the method in words, as JSON values."""
        graph, task, itemsize = training.network.graph, training.task, training.X.element_size()
        found = {**graph_scene(graph, task.layout.dim, itemsize), "steps": self.steps, **self.method(training)}
        if isinstance(task, ModuleTask):
            found["data"] = task.data.name
            if isinstance(task.partition, Partition):  # nodes that draw from streams have no epochs
                found["steps_per_epoch"] = len(task.data) / (task.nodes * task.batch)
            if (counts := task.label_counts) is not None:
                part = neighborhood(graph)
                names = list(task.data.class_names) or [str(label) for label in range(task.data.classes)]
                found |= {"counts": (counts if part is None else counts[part]).tolist(), "classes": names}
        return found

    @property
    def pictured(self) -> set[int]:
        """The steps whose records get a line in nodes.jsonl."""
        lines, steps = max(4, min(_MAX_NODE_LINES, _MAX_NODE_NUMBERS // (3 * self.nodes))), self.steps
        evaluated = [*range(self.evaluate_every - 1, steps - 1, self.evaluate_every), steps - 1]
        return {*thinned(evaluated, lines // 2), *thinned(self.recorded(steps), lines // 2)}

    def recorded(self, steps: int) -> list[int]:
        """The steps among the first `steps` that have a record."""
        every, evaluate = self.record_every, self.evaluate_every
        return [t - 1 for t in range(1, steps + 1) if t % every == 0 or t % evaluate == 0 or t == self.steps]

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
    n = places.n
    if n > _MAX_NODES:
        raise ConfigError(f"graph = {config.graph}: {n} nodes, allowed in a run are {_MAX_NODES}; use fewer")
    task = build_task(config, n, seed)
    length, tau = _run_length(config, task), config.local_steps
    steps, record_every = whole_rounds(length, tau), whole_rounds(config.record_every, tau)
    evaluate_every = whole_rounds(config.evaluate_every or usual_evaluation(task, steps), tau)
    make = partial(
        Training,
        policy=config.part("policy"),
        algorithm=config.part("algorithm"),
        optimizer=build_optimizer(config.optimizer, task),
        scheduler=build_scheduler(config.schedule, steps),
        clip=config.optimizer.clip,
        local_steps=config.local_steps,
        robust=config.robust,
        on_bad=config.on_bad,
    )

    def rehearsal(short: Task) -> Training:
        short.label_counts = task.label_counts
        return make(short, _network(config, places, None, World(), seed), context=Context(places, seed=seed))

    need = check_memory(task, places, world, rehearsal) if check else None  # before any rows are made

    order = _order(config, places, task, seed)
    graph = places.permuted(order)
    links = None if config.links is None else _links(config.links, places).permuted(order)

    def start() -> Training:
        return make(task, _network(config, graph, links, world, seed), context=Context(places, order, seed))

    if check:
        start()  # reports a wrong value or combination; the run itself starts again
        if need is not None:
            gc.collect()  # schedulers and optimizers refer to each other, which keeps the rows alive
    return Prepared(
        steps, n, record_every, evaluate_every, config.graph, config.placement, start, need,
        config.checkpoint_every or max(1, steps // 4), config.tensorboard, _recorded_metrics(task),
        rounding_note(tau, length, record_every=config.record_every, evaluate_every=config.evaluate_every),
    )  # fmt: skip


def _recorded_metrics(task: Task) -> tuple[str, ...] | None:
    """What records of a task can hold; None for a task of your own."""
    if isinstance(task, ModuleTask):
        return *(name + of for name in task.metrics for of in ("", "_worst", "_spread", "_average_model")), *RECORDED
    return ("distance_to_optimum", *RECORDED) if isinstance(task, QuadraticTask) else None


# --- graph, network and task ---
def base_graph(config: RunConfig, seed: int) -> Graph:
    """Build the graph of places; a random graph depends on the seed of the run, unless its spec names a seed."""
    return parse(config.graph, seed=stream(seed, "graph"))


def build_task(config: RunConfig, nodes: int, seed: int) -> Task:
    """Build the task of a run over this many nodes."""
    task: Task = supply(config.part("task"), nodes=nodes, seed=seed, run=config)
    return task


def _network(config: RunConfig, graph: Graph, links: Links | None, world: World, seed: int) -> Network:
    """Return the network of the world; faults and simulated link times are for simulations only."""
    faults, wire = config.network_faults(), _wire_dtype(config)
    if faults is None and links is None:
        return world.network(graph, config.device, wire)
    if world.size > 1 and faults is not None:
        raise ConfigError("faults are for simulations, but this run has several processes; leave them out")
    if world.size > 1:
        raise ConfigError("links are for simulations; with several processes, time is measured; leave them out")
    return simulated(graph, seed, links=links, wire_dtype=wire, faults=faults)


def _wire_dtype(config: RunConfig) -> torch.dtype | None:
    """Return the precision of rows on the wire; auto rounds them where links make bytes cost time."""
    if config.wire_dtype == "auto":
        return None if config.links is None else torch.int8
    return as_wire_dtype(config.wire_dtype)


def _links(config: LinkTimes, places: Graph) -> Links:
    """Return the links between the places of a graph."""
    usual, edges = Link(config.latency, config.bandwidth), {}
    known = {tuple(sorted(edge)) for edge in places.edges}
    for name, different in config.edges.items():
        i, j = sorted(map(int, name.split("-")))
        if (i, j) not in known:
            raise ConfigError(f"links.edges: the graph has no edge {name}; name one that mixwise graph shows")
        edges[i, j] = replace(usual, **different.model_dump(exclude_none=True))
    return Links(usual, edges)


def _order(config: RunConfig, places: Graph, task: Task, seed: int) -> list[int]:
    """Return the node at each place."""
    if config.placement == "given":
        return list(range(places.n))
    if config.placement == "random":
        return [int(node) for node in numpy_generator(seed, "placement").permutation(places.n)]
    if config.placement == "gme":
        nodes = range(task.nodes)
        X = task.initial(nodes)
        grams = [gram_matrix(task.losses_and_gradients(X, nodes, step)[1]) for step in range(_FIRST_BATCHES)]
        return list(optimize_placement(sum(grams[1:], grams[0]), places, seed=seed).order)
    return list(config.placement)


def _run_length(config: RunConfig, task: Task) -> int:
    """Return the number of steps; in an epoch, an average node sees its data once."""
    if config.epochs is None:
        assert config.steps is not None
        return config.steps
    if not isinstance(task, ModuleTask):
        raise ConfigError(f"epochs = {config.epochs:g}: {words(config.part('task'))} have no epochs; give steps")
    return max(1, round(config.epochs * len(task.data) / (task.nodes * task.batch)))


# --- optimizer and schedule ---
def build_optimizer(o: Optimizer, task: Task) -> OptimizerFactory:
    """Return a factory of the optimizer; of two blocks of columns, the second has no weight decay."""
    if o.nesterov and o.momentum == 0:
        raise ConfigError("optimizer: nesterov needs a momentum above 0")
    make_optimizer, further = _OPTIMIZERS[o.kind]
    options = {"lr": _step_size(o.lr, task), "weight_decay": o.weight_decay, **o.model_dump(include=further)}

    def make(blocks: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [block]} | ({"weight_decay": 0.0} if i > 0 else {}) for i, block in enumerate(blocks)]
        return make_optimizer(groups, **options)

    return make


def build_scheduler(s: Schedule, steps: int) -> SchedulerFactory | None:
    """Return a factory of the learning rate's schedule, or None if the rate is constant."""
    if s.warmup == 0 and not s.decay_at and not s.cosine:
        return None
    at = factor(steps, **s.model_dump())
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, at)


def _step_size(lr: float | str, task: Task) -> float:
    if not isinstance(lr, str):
        return lr
    if not isinstance(task, QuadraticTask):
        raise ConfigError(f"optimizer.lr = {lr!r} needs a task whose smoothness L is known; give a number")
    return float(lr.removesuffix("/L")) / task.smoothness  # checked: a number, then /L
