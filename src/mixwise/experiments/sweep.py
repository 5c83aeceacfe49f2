"""Choose values from a grid on the validation split, and test the winner once.

DIR/<key=value,…>/      one ordinary run folder per point of the grid, evaluated on the validation split
DIR/chosen.yaml         the experiment with the chosen values of every variant; itself a recipe
DIR/test.jsonl          the winners on the test set, seed by seed
DIR/summary.csv, .md    the same, averaged over seeds
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments.config import Recipe
from mixwise.experiments.experiment_folder import CHECKPOINT, writing
from mixwise.experiments.grid import beyond, short, split_grid
from mixwise.experiments.recipe import Experiment, PlannedRun, plan_experiment
from mixwise.experiments.runner import OnProgress, run_experiment
from mixwise.network.world import World
from mixwise.report.divergence import read_divergence
from mixwise.report.folder import Run, RunFolder, read_scene
from mixwise.report.records import higher_is_better
from mixwise.report.summary import Summary, summarize
from mixwise.report.table import Row
from mixwise.storage import check_no_links, write_text
from mixwise.training.checkpoint import load_checkpoint
from mixwise.training.figures import disagreements
from mixwise.training.record_files import SCENE


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    Attributes:
        chosen: the point that won for every variant.
        summary: the winners' figures on the test set.
        notes: variants that diverged everywhere, and choices on the edge of the grid, each in one line.
    """

    chosen: dict[str, str]
    summary: Summary
    notes: tuple[str, ...] = ()


def sweep(
    recipe: Recipe,
    overrides: Sequence[str],
    folder: Path,
    on_progress: OnProgress = lambda progress: None,
    world: World | None = None,
    resume: bool = False,
) -> SweepResult:
    """Run the grid on the validation split, choose per variant by the recipe's first metric, test the winners.

    With `resume`, continue in the folder of an interrupted sweep: finished runs are read, not run again.
    """
    world = world or World()
    plain, axes = split_grid(overrides)
    if not axes:
        raise ConfigError("a sweep needs a key with several values, such as lr=0.03,0.1")

    def on(split: str, point: Sequence[str]) -> Experiment:
        return plan_experiment(recipe, [*plain, *point, f"task.evaluate_on={split}"])

    points = {",".join(point): point for point in product(*axes)}
    places = {name: folder / name.replace("/", "_over_") for name in points}
    grid = {name: on("validation", point) for name, point in points.items()}
    with writing(folder) as lock:
        lock.begin(world)
        check_no_links(folder, places.values())
        found = {
            name: run_experiment(grid[name], places[name], _at(points[name], on_progress), resume, world).rows
            for name in grid
        }
        chosen, notes = _chosen(found, higher_is_better(recipe.metrics[0]))
        for variant, name in chosen.items():
            notes += edges(variant, axes, points[name], lambda point: on("validation", point))
        tested = {name: on("test", point) for name, point in points.items()}
        winners = {variant: tested[name].runs[variant] for variant, name in chosen.items()}
        experiment = Experiment(next(iter(tested.values())).recipe, winners)
        runs = [
            _tested(winners[variant], variant, seed, places[name] / variant / f"seed-{seed}", world)
            for variant, name in chosen.items()
            for seed in experiment.recipe.seeds
        ]
        head = experiment.recipe
        tested_runs = RunFolder(
            folder, head.name, metrics=head.metrics, variants=list(winners), seeds=head.seeds, runs=runs
        )
        summary = summarize(tested_runs, strict=True)
        if world.rank == 0:
            write_text(folder / "chosen.yaml", experiment.to_yaml())
            records = ({"variant": run.variant, "seed": run.seed, **run.records[0]} for run in runs if run.records)
            write_text(folder / "test.jsonl", "".join(json.dumps(record) + "\n" for record in records))
            write_text(folder / "summary.csv", summary.to_csv())
            title = f"{experiment.recipe.name}: chosen on the validation split"
            write_text(folder / "summary.md", summary.to_markdown(title) + "".join(f"\n{note}\n" for note in notes))
        return SweepResult(chosen, summary, tuple(notes))


def _at(point: Sequence[str], on_progress: OnProgress) -> OnProgress:
    """Return a callback that knows the point of the grid."""
    return lambda progress: on_progress(replace(progress, point=short(point)))


def edges(
    variant: str, axes: Sequence[Sequence[str]], point: Sequence[str], plan: Callable[[Sequence[str]], Experiment]
) -> list[str]:
    """Say where a choice lies on the edge of the grid, with the value that would come next, if that is allowed."""
    notes = []
    for k, axis in enumerate(axes):
        key, _, value = point[k].partition("=")
        values = [each.partition("=")[2] for each in axis]
        if (further := beyond(values, value)) is None:
            continue
        with suppress(ConfigError):  # the end of what is allowed: there is nothing beyond
            plan([*point[:k], f"{key}={further}", *point[k + 1 :]])
            edge, name = short([point[k]]), short([f"{key}={further}"])
            notes.append(f"{variant}: {edge} is on the edge of the grid, so the best value may lie beyond; add {name}")
    return notes


def _chosen(found: Mapping[str, Mapping[str, Row]], higher: bool) -> tuple[dict[str, str], list[str]]:
    """The best point for every variant, with the fewest diverged seeds and then the best mean, and who has none."""

    def rank(row: Row) -> tuple[int, float]:
        cell = row.cells[0]
        mean = -math.inf if cell is None else cell.mean if higher else -cell.mean
        return -len(row.diverged), mean

    chosen, notes = {}, []
    for variant in next(iter(found.values())):
        point = max(found, key=lambda name: rank(found[name][variant]))
        if found[point][variant].cells[0] is not None:
            chosen[variant] = point
        else:
            notes.append(f"{variant} diverged at every point of the grid and is left out; lower its learning rate (lr)")
    if not chosen:
        raise TrainingError("every run of the grid has diverged; lower the learning rate (lr)")
    return chosen, notes


def _tested(planned: PlannedRun, variant: str, seed: int, place: Path, world: World) -> Run:
    """The evaluation of the final rows of a run on the test set, as one record; none if the run has diverged."""
    if (divergence := read_divergence(place)) is not None:
        return Run(variant, seed, [], read_scene(place / SCENE), divergence=divergence)
    prepared = planned.prepare(seed, world)
    training = prepared.start()
    load_checkpoint(training, place / CHECKPOINT)
    X, network = training.models, training.network
    distance = float(disagreements(X, network).sum(0)[0]) / network.graph.n
    values = {"step": training.t - 1, "consensus_distance": distance}
    return Run(variant, seed, [values | training.task.evaluate(X, network)], prepared.method(training))
