"""The function `mixwise.compare`: its arguments are checked before anything is written."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from itertools import takewhile
from numbers import Integral
from pathlib import Path
from typing import Any

from mixwise.comparison.own_run import GraphLike, OwnRun, TaskLike
from mixwise.errors import ConfigError, DivergedError, MixwiseError, TrainingError, kind_of, unknown
from mixwise.experiments import Experiment, Recipe, load_run, run_experiment
from mixwise.experiments.config import check_folder_name, validated
from mixwise.experiments.run_folder import Run
from mixwise.graphs.spec import as_graph
from mixwise.network.world import World
from mixwise.policies.choice import PolicyLike
from mixwise.protocols import Task
from mixwise.training import records, train

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
    is reported at once. All methods of a seed must have the same graph, parameters and data, and two seeds may not.

    Args:
        task: a function that makes the task of a seed; a task itself only if there is one seed.
        graph: what `mixwise.train` takes, such as a graph, its name "ring:16", or several of them that take turns; or a
            function of the seed that makes one of these or a network.
        methods: by name, what `mixwise.train` takes: a dictionary such as `{"policy": "pairs", "local_steps": 4}`, or
            just a policy.
        seeds: of the runs; policies and algorithms draw from their streams.
        out: the run folder; by default runs/compare/TIME.
        metrics: of the table, the first one decides; by default those of `task.evaluate` and the consensus distance.
        window: the steps over which the table averages.
        resume: whether to continue in a folder that an earlier call with the same arguments left behind.
        progress: whether to show it, on standard error.
        options: arguments of `mixwise.train` for all methods: `optimizer` and `steps`, `algorithm`, `scheduler`,
            `wire_dtype`, `links`, `faults`, …; and `checkpoint_every`, `tensorboard`.

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
    if isinstance(graph, list | tuple):
        graph = [each if isinstance(each, str) else as_graph(each) for each in graph]
    elif not isinstance(graph, str) and not callable(graph):
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
    try:
        with shown as on_progress:
            run_experiment(experiment, folder, on_progress, resume)
    except KeyboardInterrupt:
        begun = (folder / "config.yaml").exists()
        raise _stopped(f"; continue with the same call and out={str(folder)!r}, resume=True" * begun) from None
    return load_run(folder)


class StoppedError(SystemExit, KeyboardInterrupt):
    """Ctrl-C, which ends a script with one line in place of a traceback."""


def _stopped(how: str) -> KeyboardInterrupt:
    """Return what Ctrl-C raises; an interactive interpreter would end with a `SystemExit`."""
    interactive = hasattr(sys, "ps1")
    return (KeyboardInterrupt if interactive else StoppedError)(f"stopped{how}")


def _method(name: str, task: TaskLike, graph: GraphLike, options: dict[str, Any], method: Any) -> OwnRun:
    check_folder_name("method", name)
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
