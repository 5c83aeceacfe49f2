"""`mixwise.compare`: several methods on your own task, over several seeds, in a run folder like that of a recipe."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, fields
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError, MixwiseError, unknown
from mixwise.experiments import Experiment, Recipe, load_run, run_experiment
from mixwise.experiments.config import validated
from mixwise.experiments.own_run import GraphLike, OwnRun, TaskLike
from mixwise.experiments.run_folder import Run
from mixwise.network.world import World
from mixwise.policies.choice import PolicyLike
from mixwise.protocols import Task
from mixwise.training import records

_LESS_TELLING = ("_spread", "_average_model")
_OPTIONS = [field.name for field in fields(OwnRun) if field.name not in ("task", "graph")]
_NEEDED = [field.name for field in fields(OwnRun) if field.default is MISSING and field.name in _OPTIONS]


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

    chosen = list(seeds)
    if isinstance(task, Task) and len(chosen) > 1:
        raise ConfigError(
            f"task is one object, so all {len(chosen)} seeds would have the same data, start and batches; pass a "
            f"function of the seed: lambda seed: ModuleTask(…, seed=seed)"
        )
    runs = {name: _method(name, task, graph, {**options}, method) for name, method in methods.items()}
    if not runs:
        raise ConfigError('methods is empty; name at least one, such as {"gossip": "metropolis-hastings"}')
    recorded = [_rehearse(name, run, chosen[0] if chosen else 0) for name, run in runs.items()]
    folder = Path("runs", "compare", datetime.now().strftime("%Y-%m-%d_%H-%M-%S")) if out is None else Path(out)
    head = {
        "name": re.sub(r"[^A-Za-z0-9_.@-]+", "-", folder.resolve().name).lstrip("-_.@") or "comparison",
        "description": f"{len(runs)} methods compared by mixwise.compare",
        "seeds": chosen,
        "window": window,
        "metrics": _default_metrics(recorded[0]) if metrics is None else list(metrics),
        "variants": {name: run.described() for name, run in runs.items()},
    }
    recipe = validated(Recipe, head, "compare")
    for metric in recipe.metrics:
        if metric not in recorded[0]:
            raise ConfigError("metrics: " + unknown("metric", metric, recorded[0]))
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
    for key in _NEEDED:
        if key not in options:
            example = "lambda rows: torch.optim.SGD(rows, lr=0.1)" if key == "optimizer" else "200"
            raise ConfigError(f"method {name}: {key} is missing; give it to all methods: compare(…, {key}={example})")
    return OwnRun(task, graph, **options)


def _rehearse(name: str, run: OwnRun, seed: int) -> dict[str, Any]:
    """The values of the record of one step."""
    every = run.local_steps  # the first mixing
    try:
        return next(records(run.prepare(seed, World()).start(), every, every, every)).values
    except MixwiseError as error:
        error.args = (f"method {name}: {error}",)
        raise


def _default_metrics(recorded: dict[str, Any]) -> list[str]:
    """The values of the evaluation, which come between the loss and the consensus distance, and the latter."""
    evaluated = list(takewhile(lambda key: key != "consensus_distance", [key for key in recorded if key != "loss"]))
    told = [key for key in evaluated if not key.endswith(_LESS_TELLING)]
    return [*(told[:3] or ["loss"]), "consensus_distance"]
