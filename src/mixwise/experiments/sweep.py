"""Choose values from a grid on the validation split, and test the winner once.

DIR/<key=value,…>/      one ordinary run folder per point of the grid, evaluated on the validation split
DIR/chosen.yaml         the experiment with the chosen values of every variant; itself a recipe
DIR/test.jsonl          the winners on the test set, seed by seed
DIR/summary.csv, .md    the same, averaged over seeds
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError
from mixwise.experiments.build import prepare
from mixwise.experiments.config import Recipe
from mixwise.experiments.experiment_folder import CHECKPOINT, hold, note_begin
from mixwise.experiments.folder_lock import FolderLock
from mixwise.experiments.recipe import Experiment, plan_experiment
from mixwise.experiments.runner import OnProgress, run_experiment
from mixwise.network.world import World
from mixwise.report.metric_names import higher_is_better
from mixwise.report.records import Results
from mixwise.report.table import Summary, summarize
from mixwise.training.checkpoint import load_checkpoint
from mixwise.training.disagreement import disagreement

ALIASES = {"lr": "optimizer.lr"}


@dataclass(frozen=True)
class SweepResult:
    """The point that won for every variant, and the winners' figures on the test set."""

    chosen: dict[str, str]
    summary: Summary


def split_grid(overrides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Ordinary overrides, and those with several values: `lr=0.03,0.1` is an axis of the grid.

    >>> split_grid(["topology=ring", "lr=0.03,0.1"])
    (['topology=ring'], [['optimizer.lr=0.03', 'optimizer.lr=0.1']])
    """
    plain, axes = [], []
    for text in overrides:
        key, equals, values = text.partition("=")
        key = ALIASES.get(key, key)
        if "," in values and key not in ("variants", "seeds", "topology") and not values.startswith(("[", "{")):
            axes.append([f"{key}={value}" for value in values.split(",")])
        else:
            plain.append(f"{key}{equals}{values}")
    return plain, axes


def sweep(
    recipe: Recipe,
    overrides: Sequence[str],
    folder: Path,
    on_progress: OnProgress = lambda progress: None,
    world: World | None = None,
) -> SweepResult:
    """Run the grid on the validation split, choose per variant by the recipe's first metric, test the winners."""
    world = world or World()
    plain, axes = split_grid(overrides)
    if not axes:
        raise ConfigError("a sweep needs a key with several values, such as lr=0.03,0.1")
    points = [list(point) for point in product(*axes)]
    validated = {",".join(point): _on(recipe, [*plain, *point], "validation") for point in points}
    lock = FolderLock(folder)

    def take() -> None:
        hold(lock, world)
        note_begin(lock, world)

    try:
        world.decide(take)
        return _sweep(recipe, plain, validated, lock.folder, on_progress, world)
    finally:
        lock.release()


def _sweep(
    recipe: Recipe,
    plain: list[str],
    validated: dict[str, Experiment],
    folder: Path,
    on_progress: OnProgress,
    world: World,
) -> SweepResult:
    results = {
        name: run_experiment(experiment, folder / name.replace("/", "_over_"), on_progress, world=world)
        for name, experiment in validated.items()
    }
    column, better = 0, max if higher_is_better(recipe.metrics[0]) else min
    variants = list(next(iter(results.values())).rows)
    chosen = {v: better(results, key=lambda name: results[name].rows[v][column].mean) for v in variants}
    tested = {name: _on(recipe, [*plain, *name.split(",")], "test") for name in results}
    winners = {variant: tested[name].runs[variant] for variant, name in chosen.items()}
    experiment = Experiment(next(iter(tested.values())).recipe, winners)
    final: Results = {
        variant: dict(_tested(experiment, variant, folder / name.replace("/", "_over_"), world))
        for variant, name in chosen.items()
    }
    summary = summarize(final, recipe.metrics, recipe.window)
    if world.rank > 0:
        return SweepResult(chosen, summary)
    (folder / "chosen.yaml").write_text(experiment.to_yaml(), "utf-8")
    lines = [
        {"variant": variant, "seed": seed, **runs[0]}
        for variant, seeds in final.items()
        for seed, runs in seeds.items()
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "summary.csv").write_text(summary.to_csv(), "utf-8")
    (folder / "summary.md").write_text(summary.to_markdown(f"{recipe.name}: chosen on the validation split"), "utf-8")
    return SweepResult(chosen, summary)


def _on(recipe: Recipe, overrides: list[str], split: str) -> Experiment:
    return plan_experiment(recipe, [*overrides, f"task.evaluate_on={split}"])


def _tested(
    experiment: Experiment, variant: str, folder: Path, world: World
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """For every seed one record: the evaluation of the final rows on the test set."""
    for seed in experiment.recipe.seeds:
        prepared = prepare(experiment.runs[variant], seed, world)
        training = prepared.start()
        load_checkpoint(training, folder / variant / f"seed-{seed}" / CHECKPOINT)
        X, network = training.models, training.network
        values = {"step": training.t - 1, "consensus_distance": disagreement(X, network)[0] / network.graph.n}
        yield seed, [{**values, **training.task.evaluate(X, network)}]
