"""One method of `mixwise.compare`.

Your objects cannot be stored in config.yaml. It holds their descriptions instead, and a run is resumed only by objects
with the same descriptions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from mixwise.comparison.description import described
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments.build import Prepared
from mixwise.experiments.memory import check_memory
from mixwise.experiments.own_code import own_code
from mixwise.experiments.pairing import start_of
from mixwise.graphs import Graph, parse
from mixwise.graphs.spec import GraphLike as OneGraph
from mixwise.network import Network
from mixwise.network.building import as_network
from mixwise.network.world import World
from mixwise.policies.choice import PolicyLike, in_turn
from mixwise.protocols import Context, Task
from mixwise.seeding import stream
from mixwise.training import Training
from mixwise.training.checks import check_arguments, check_counts
from mixwise.training.loop import rounding_note, whole_rounds

TaskLike: TypeAlias = Task | Callable[[int], Task]
GraphLike: TypeAlias = OneGraph | Sequence[OneGraph] | Callable[[int], OneGraph | Sequence[OneGraph] | Network]
Drawn = TypeVar("Drawn")
_EVALUATIONS = 20  # of a run, by default


@dataclass(frozen=True)
class OwnRun:
    """One method of `mixwise.compare`.

    The run is evaluated about 20 times and keeps about 4 checkpoints, unless `evaluate_every` and `checkpoint_every`
    say otherwise.

    Attributes:
        task, graph: those of `compare`.
        options: the arguments of `mixwise.train`, `checkpoint_every` and `tensorboard`, with their defaults.
    """

    task: TaskLike
    graph: GraphLike
    options: Mapping[str, Any]

    def prepare(self, seed: int, world: World, *, check: bool = True) -> Prepared:
        """Build the run of a seed; with `check`, it is started once to see that its parts fit together."""
        if world.size > 1:
            raise ConfigError("a comparison simulates all nodes in one process; start it without torchrun")
        task = self.task if isinstance(self.task, Task) else self.task(seed)
        if not isinstance(task, Task):
            raise TrainingError(f"task(seed) is {task!r}; return a Task, such as mixwise.tasks.ModuleTask(…)")
        options = dict(self.options)
        network, options["policy"] = self._network_and_policy(seed)
        check_arguments(task, options["optimizer"], options["scheduler"])
        every = {name: options[name] for name in ("record_every", "evaluate_every") if options[name] is not None}
        check_counts(steps=options["steps"], **every)
        arguments = {name: options[name] for name in inspect.signature(Training).parameters if name in options}

        def start(nodes: Sequence[int] = (), task: Task = task, network: Network = network) -> Training:
            return Training(task, network, **arguments, context=Context(network.graph, seed=seed))

        need = begun = None
        if check:
            again = partial(self._network_and_policy, seed)
            need = check_memory(task, network.graph, world, lambda short: start((), short, again()[0]))
            begun = start_of(start())
        graph = self.graph if isinstance(self.graph, str) else f"a graph with {len(network.graph.edges)} edges"
        tau, steps = options["local_steps"], whole_rounds(options["steps"], options["local_steps"])
        evaluate_every = every.get("evaluate_every", max(1, steps // _EVALUATIONS))
        return Prepared(
            steps, network.graph.n, whole_rounds(options["record_every"], tau), whole_rounds(evaluate_every, tau),
            graph, "given", start, need, options["checkpoint_every"] or max(1, steps // 4), options["tensorboard"],
            note=rounding_note(tau, options["steps"], **every), begun=begun,
        )  # fmt: skip

    def _network_and_policy(self, seed: int) -> tuple[Network, PolicyLike]:
        """Return the network of a seed, and the policy, which several graphs in turn are a part of."""
        graph = self.graph(seed) if callable(self.graph) else self.graph
        policy = self.options["policy"]
        if isinstance(graph, list | tuple):
            graph, policy = in_turn([_drawn(each, seed) for each in graph], policy)
        options = {name: self.options[name] for name in ("links", "wire_dtype", "faults")}
        return as_network(_drawn(cast(OneGraph | Network, graph), seed), seed, **options), policy

    def described(self) -> dict[str, Any]:
        """Return the run as config.yaml holds it."""
        values = self._values
        steps = values.pop("steps")
        return {
            "steps": steps,
            "python": {name: described(value) for name, value in values.items() if value is not None},
        }

    def matches(self, written: Mapping[str, Any]) -> bool:
        """Whether config.yaml describes this run."""
        return self.described() == written

    def code(self) -> dict[str, str]:
        """Return checksums of the code of your own that the run uses, by what it is used for."""
        found = {name: own_code(value) for name, value in self._values.items()}
        return {name: checksum for name, checksum in found.items() if checksum is not None}

    @property
    def _values(self) -> dict[str, Any]:
        return {"task": self.task, "graph": self.graph, **self.options}


def _drawn(graph: Drawn, seed: int) -> Drawn | Graph:
    """Return the graph of a spec, random ones as in a recipe; anything else as it is."""
    return parse(graph, seed=stream(seed, "graph")) if isinstance(graph, str) else graph
