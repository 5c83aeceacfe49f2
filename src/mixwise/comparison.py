"""`mixwise.compare`: several methods on your own task, over several seeds, in a run folder like that of a recipe.

Your objects cannot be stored in config.yaml. It holds their descriptions instead: the source of a function with the
plain values that it uses, the `repr` of anything else with a checksum of its contents. A run is resumed only by objects
with the same descriptions.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from numbers import Integral
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

from mixwise.errors import ConfigError, DivergedError, MixwiseError, TrainingError, kind_of, unknown
from mixwise.experiments import Experiment, Recipe, load_run, run_experiment
from mixwise.experiments.build import Prepared
from mixwise.experiments.config import validated
from mixwise.experiments.memory import check_memory
from mixwise.experiments.run_folder import Run
from mixwise.graphs import Graph, parse
from mixwise.graphs.spec import as_graph
from mixwise.network import Network, SimulatedNetwork
from mixwise.network.agreement import describe
from mixwise.network.world import World
from mixwise.policies.choice import PolicyLike
from mixwise.protocols import Context, Task
from mixwise.seeding import stream
from mixwise.training import Training, records, train
from mixwise.training.checks import check_arguments, check_counts
from mixwise.training.loop import rounding_note, whole_rounds

TaskLike: TypeAlias = Task | Callable[[int], Task]
GraphLike: TypeAlias = Graph | str | Callable[[int], Graph | Network]
_EVALUATIONS = 20  # of a run, by default
_PLAIN = (str, int, float, bool)
_LESS_TELLING = ("_spread", "_average_model")
_ARGUMENTS = {name: each.default for name, each in inspect.signature(train).parameters.items()}
_OPTIONS = {  # of a method, with their defaults
    **{name: default for name, default in _ARGUMENTS.items() if name not in ("task", "graph", "seed")},
    "checkpoint_every": None,
    "tensorboard": False,
}
_EXAMPLES = {"optimizer": "lambda rows: torch.optim.SGD(rows, lr=0.1)", "steps": "200"}


def compare(
    task: TaskLike,
    graph: GraphLike,
    methods: Mapping[str, PolicyLike | Mapping[str, Any]],
    *,
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    metrics: Iterable[str] | None = None,
    window: int = 1,
    resume: bool = False,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train with every method and every seed, and write a run folder: records, table, figures, report.

    Before anything is written, every method takes one step and is evaluated once, so that a mistake in the last of them
    is reported at once.

    Args:
        task: a function that makes the task of a seed; a task itself only if there is one seed.
        graph: the communication graph, its name such as "ring:16", or a function of the seed that makes a graph or a
            network (with link times or faults).
        methods: by name, what `mixwise.train` takes: a dictionary such as `{"policy": "pairs", "local_steps": 4}`, or
            just a policy.
        seeds: of the runs; policies and algorithms draw from their streams.
        out: the run folder; by default runs/compare/TIME.
        metrics: of the table, the first one decides; by default those of `task.evaluate` and the consensus distance.
        window: the steps over which the table averages.
        resume: whether to continue in a folder that an earlier call with the same arguments left behind.
        progress: whether to show it, on standard error.
        options: arguments of `mixwise.train` for all methods: `optimizer` and `steps`, `algorithm`, `scheduler`, …;
            and `checkpoint_every`, `tensorboard`.

    Returns the run: `print(run)` shows the table, `run.plot()` the curves, `run.frame()` is a pandas frame of all
    records, and `run.summary.difference("aware", "gossip")` compares two methods seed by seed.
    """
    from mixwise.terminal import progress_shown  # with it rich, whose import draws from Python's global generator

    if not isinstance(methods, Mapping):
        raise ConfigError(f'methods is {kind_of(methods)}; name them, such as {{"gossip": "metropolis-hastings"}}')
    given: object = seeds
    chosen = list(given) if isinstance(given, Iterable) else []
    if not isinstance(given, Iterable) or not all(isinstance(seed, Integral) for seed in chosen):
        raise ConfigError(f"seeds = {given!r}; give whole numbers, such as seeds=range(5)")
    chosen = [int(seed) for seed in chosen]  # an integer of NumPy has no form in a file
    if isinstance(task, Task) and len(chosen) > 1:
        raise ConfigError(
            f"task is one object, so all {len(chosen)} seeds would have the same data, start and batches; pass a "
            f"function of the seed: lambda seed: ModuleTask(…, seed=seed)"
        )
    if not isinstance(graph, str) and not callable(graph):
        graph = as_graph(graph)
    runs = {name: _method(name, task, graph, {**options}, method) for name, method in methods.items()}
    if not runs:
        raise ConfigError('methods is empty; name at least one, such as {"gossip": "metropolis-hastings"}')
    rehearsed = [_rehearse(name, run, chosen[0] if chosen else 0) for name, run in runs.items()]
    recorded = next((values for values in rehearsed if values), None)
    if recorded is None:
        raise TrainingError("every method diverges in its first round; lower the learning rate (lr)")
    folder = Path("runs", "compare", datetime.now().strftime("%Y-%m-%d_%H-%M-%S")) if out is None else Path(out)
    head = {
        "name": re.sub(r"[^A-Za-z0-9_.@-]+", "-", folder.resolve().name).lstrip("-_.@") or "comparison",
        "description": f"{len(runs)} methods compared by mixwise.compare",
        "seeds": chosen,
        "window": window,
        "metrics": _default_metrics(recorded) if metrics is None else list(metrics),
        "variants": {name: run.described() for name, run in runs.items()},
    }
    recipe = validated(Recipe, head, "compare")
    for metric in recipe.metrics:
        if metric not in recorded:
            raise ConfigError("metrics: " + unknown("metric", metric, recorded))
    script = sys.argv[0].endswith(".py")
    experiment = Experiment(recipe, runs, f"python {shlex.join(sys.argv)}" if script else "mixwise.compare(…)")
    shown = progress_shown(World(), len(chosen) * len(runs)) if progress else nullcontext(lambda _: None)
    with shown as on_progress:
        run_experiment(experiment, folder, on_progress, resume)
    return load_run(folder)


def _method(name: str, task: TaskLike, graph: GraphLike, options: dict[str, Any], method: Any) -> OwnRun:
    options |= method if isinstance(method, Mapping) else {"policy": method}
    for key in options:
        if key not in _OPTIONS:
            raise ConfigError(f"method {name}: " + unknown("option", key, _OPTIONS))
    for key, example in _EXAMPLES.items():
        if key not in options:
            raise ConfigError(f"method {name}: {key} is missing; give it to all methods: compare(…, {key}={example})")
    return OwnRun(task, graph, {**_OPTIONS, **options})


def _rehearse(name: str, run: OwnRun, seed: int) -> dict[str, Any]:
    """The values of the record of the first mixing; empty if the run diverges before."""
    every = run.options["local_steps"]  # the first mixing
    try:
        return next(records(run.prepare(seed, World()).start(), every, every, every)).values
    except DivergedError:
        return {}
    except MixwiseError as error:
        error.args = (f"method {name}: {error}",)
        raise


def _default_metrics(recorded: dict[str, Any]) -> list[str]:
    """The values of the evaluation, which come between the loss and the consensus distance, and the latter."""
    evaluated = list(takewhile(lambda key: key != "consensus_distance", [key for key in recorded if key != "loss"]))
    told = [key for key in evaluated if not key.endswith(_LESS_TELLING)]
    return [*(told[:3] or ["loss"]), "consensus_distance"]


# --- runs of your own objects ---
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
        network, options = self._network(seed), self.options
        check_arguments(task, options["optimizer"], options["scheduler"])
        every = {name: options[name] for name in ("record_every", "evaluate_every") if options[name] is not None}
        check_counts(steps=options["steps"], **every)
        arguments = {name: options[name] for name in inspect.signature(Training).parameters if name in options}

        def start(nodes: Sequence[int] = (), task: Task = task, network: Network = network) -> Training:
            return Training(task, network, **arguments, context=Context(network.graph, seed=seed))

        need = None
        if check:
            need = check_memory(task, network.graph, world, lambda short: start((), short, self._network(seed)))
            start()
        graph = self.graph if isinstance(self.graph, str) else f"a graph with {len(network.graph.edges)} edges"
        tau, steps = options["local_steps"], whole_rounds(options["steps"], options["local_steps"])
        evaluate_every = every.get("evaluate_every", max(1, steps // _EVALUATIONS))
        return Prepared(
            steps, network.graph.n, whole_rounds(options["record_every"], tau), whole_rounds(evaluate_every, tau),
            graph, "given", start, need, options["checkpoint_every"] or max(1, steps // 4), options["tensorboard"],
            note=rounding_note(tau, options["steps"], **every),
        )  # fmt: skip

    def _network(self, seed: int) -> Network:
        graph = self.graph
        if isinstance(graph, str):
            return SimulatedNetwork(parse(graph, seed=stream(seed, "graph")))  # as in a recipe
        found = graph if isinstance(graph, Graph) else graph(seed)
        return SimulatedNetwork(found) if isinstance(found, Graph) else found

    def described(self) -> dict[str, Any]:
        """Return the run as config.yaml holds it."""
        values = {"task": self.task, "graph": self.graph, **self.options}
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
