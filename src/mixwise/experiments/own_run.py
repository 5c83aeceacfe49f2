"""Runs of your own objects: a task, a graph and a method as `mixwise.train` takes them, for the runner of recipes.

Objects cannot be stored in config.yaml. It holds their descriptions instead: the source of a function with the plain
values that it uses, the `repr` of anything else with a checksum of its contents. A run is resumed only by objects with
the same descriptions.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

from mixwise.algorithms import DSGD
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments.build import Prepared
from mixwise.experiments.memory import check_memory
from mixwise.graphs import Graph, parse
from mixwise.network import Network, SimulatedNetwork
from mixwise.network.agreement import describe
from mixwise.network.world import World
from mixwise.policies.choice import PolicyLike, policy_for
from mixwise.protocols import Algorithm, Context, Task
from mixwise.seeding import stream
from mixwise.training import Training
from mixwise.training.run_log import method_words
from mixwise.training.training import OptimizerFactory, SchedulerFactory

TaskLike: TypeAlias = Task | Callable[[int], Task]
GraphLike: TypeAlias = Graph | str | Callable[[int], Graph | Network]
_EVALUATIONS = 20  # of a run, by default
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True)
class OwnRun:
    """One method of `mixwise.compare`; the arguments are those of `mixwise.train`.

    `task` and `graph` may be functions of the seed. The run is evaluated about 20 times and keeps about 4 checkpoints,
    unless `evaluate_every` and `checkpoint_every` say otherwise.
    """

    task: TaskLike
    graph: GraphLike
    optimizer: OptimizerFactory
    steps: int
    policy: PolicyLike = "auto"
    algorithm: Algorithm | None = None
    scheduler: SchedulerFactory | None = None
    clip: float | None = None
    local_steps: int = 1
    record_every: int = 1
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    tensorboard: bool = False

    def prepare(self, seed: int, world: World, *, check: bool = True) -> Prepared:
        """Build the run of a seed; with `check`, it is started once to see that its parts fit together."""
        if world.size > 1:
            raise ConfigError("a comparison simulates all nodes in one process; start it without torchrun")
        task = self.task if isinstance(self.task, Task) else self.task(seed)
        if not isinstance(task, Task):
            raise TrainingError(f"task(seed) is {task!r}; return a Task, such as mixwise.tasks.ModuleTask(…)")
        network = self._network(seed)
        make = partial(
            Training,
            policy=self.policy,
            algorithm=self.algorithm,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            clip=self.clip,
            local_steps=self.local_steps,
            context=Context(network.graph, seed=seed),
        )

        def start(nodes: Sequence[int] = ()) -> Training:
            return make(task, network)

        need = None
        if check:
            need = check_memory(task, network.graph, world, lambda short: make(short, self._network(seed)))
            start()
        algorithm = DSGD() if self.algorithm is None else self.algorithm
        policy = policy_for(self.policy, network.graph, algorithm.needs)
        graph = self.graph if isinstance(self.graph, str) else f"a graph with {len(network.graph.edges)} edges"
        return Prepared(
            self.steps, network.graph.n, self.record_every, self.evaluate_every or max(1, self.steps // _EVALUATIONS),
            method_words(graph, "given", policy, algorithm), start, need,
            self.checkpoint_every or max(1, self.steps // 4), self.tensorboard,
        )  # fmt: skip

    def _network(self, seed: int) -> Network:
        graph = self.graph
        if isinstance(graph, str):
            return SimulatedNetwork(parse(graph, seed=stream(seed, "graph")))  # as in a recipe
        if not isinstance(graph, Graph) and not callable(graph):
            raise TrainingError(f"graph = {graph!r}; pass a graph, its name, or a function of the seed")
        found = graph if isinstance(graph, Graph) else graph(seed)
        return SimulatedNetwork(found) if isinstance(found, Graph) else found

    def described(self) -> dict[str, Any]:
        """Return the run as config.yaml holds it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        steps = values.pop("steps")
        return {
            "steps": steps,
            "python": {name: described(value) for name, value in values.items() if value is not None},
        }

    def matches(self, written: Mapping[str, Any]) -> bool:
        """Whether config.yaml describes this run."""
        return self.described() == written


def described(value: object) -> str | int | float:
    """A value as config.yaml can hold it, the same in every process.

    >>> described(0.1), described(Graph(2, [(0, 1)]))
    (0.1, 'Graph(n=2, 1 edges) [cb007a87]')
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, FunctionType):
        return _source(value)
    checksum = zlib.crc32(repr(describe("", value)).encode())
    return f"{re.sub(' at 0x[0-9a-f]+', '', repr(value))} [{checksum:08x}]"


def _source(function: FunctionType) -> str:
    """The source of a function, and the plain values that it uses from outside."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
        outside = inspect.getclosurevars(function)
    except (OSError, TypeError, ValueError, SyntaxError):  # typed into an interpreter
        return function.__qualname__
    used = {**outside.globals, **outside.nonlocals}
    values = [f"{name} = {value!r}" for name, value in used.items() if isinstance(value, _PLAIN)]
    return "\n".join([text, *(f"# {line}" for line in sorted(values))])
