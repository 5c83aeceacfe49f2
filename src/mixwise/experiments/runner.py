"""Runs an experiment and leaves a folder with everything in it (`experiment_folder` says what lies where).

With several processes, all of them run the nodes that they own and write those into checkpoints; the first one writes
everything else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwise.errors import NetworkError
from mixwise.experiments.build import Prepared, prepare
from mixwise.experiments.config import RunConfig
from mixwise.experiments.course import Course
from mixwise.experiments.experiment_folder import (
    CHECKPOINT,
    METRICS,
    SCENE,
    TIMINGS,
    WEIGHTS,
    clear_run,
    cut_run,
    hold,
    open_folder,
    records_before,
)
from mixwise.experiments.folder_lock import FolderLock
from mixwise.experiments.memory import Need
from mixwise.experiments.recipe import Experiment
from mixwise.experiments.scene import scene
from mixwise.experiments.tensorboard_log import TensorBoardLog, check_installed
from mixwise.experiments.weights_log import WeightsLog
from mixwise.network.survivors import listed
from mixwise.network.world import World
from mixwise.protocols import State
from mixwise.report.figures import save_curves
from mixwise.report.page import save_page
from mixwise.report.records import Results
from mixwise.report.table import Summary, summarize
from mixwise.training.checkpoint import (
    load_checkpoint,
    names_of_nodes,
    newest_step,
    read_state,
    save_checkpoint,
)
from mixwise.training.training import Step, Training

_WATCHED = 1.0  # seconds after which somebody who watches the folder may see new records


@dataclass(frozen=True)
class Progress:
    """How far the experiment is, after each record."""

    variant: str
    seed: int
    step: int  # the step of the record
    steps: int  # how many this run has
    values: dict[str, Any]


OnProgress = Callable[[Progress], None]


def run_experiment(
    experiment: Experiment,
    folder: Path,
    on_progress: OnProgress = lambda progress: None,
    resume: bool = False,
    world: World | None = None,
    on_need: Callable[[Need], None] = lambda need: None,
) -> Summary:
    """Run every variant with every seed; a wrong value is found before anything is written.

    With `resume`, the folder is one that an earlier call with the same experiment left behind: runs that are finished
    are read, not run again, and a run that was interrupted goes on from its last checkpoint. All processes of a world
    call this together, with a folder that all of them see. `on_need` hears what the largest run needs of memory, if
    that is much.
    """
    lock = FolderLock(folder)
    try:
        return _run_all(experiment, lock, on_progress, resume, world or World(), on_need)
    finally:
        lock.release()


def _run_all(
    experiment: Experiment,
    lock: FolderLock,
    on_progress: OnProgress,
    resume: bool,
    world: World,
    on_need: Callable[[Need], None],
) -> Summary:
    recipe, folder = experiment.recipe, lock.folder
    course = Course(world)
    while course.begin(0):
        try:
            if (need := _check(experiment, world)) is not None:
                on_need(need)
            open_folder(folder, experiment, resume, world, lock)
            break
        except NetworkError as error:
            course.lose(error, 0, 0)
    results: Results = {variant: {} for variant in experiment.runs}
    runs = [(variant, config, seed) for variant, config in experiment.runs.items() for seed in recipe.seeds]
    for stage, (variant, config, seed) in enumerate(runs, 1):
        prepared = prepare(config, seed, world, check=False)
        steps = results[variant][seed] = []
        for values in _run(prepared, folder / variant / f"seed-{seed}", course, stage, config, lock):
            while steps and steps[-1]["step"] >= values["step"]:  # of nodes that are lost since
                steps.pop()
            steps.append(values)
            on_progress(Progress(variant, seed, values["step"], prepared.steps, values))
    summary = summarize(results, recipe.metrics, recipe.window)
    if world.rank == 0:
        (folder / "summary.csv").write_text(summary.to_csv(), "utf-8")
        (folder / "summary.md").write_text(summary.to_markdown(recipe.name), "utf-8")
        save_curves(results, recipe.metrics, recipe.window, folder / "figures")
        save_page([folder], folder / "report.html")
    return summary


def _check(experiment: Experiment, world: World) -> Need | None:
    """Find wrong values, and runs that do not fit, before anything is written; the largest need."""
    needs = []
    for seed in experiment.recipe.seeds:  # seeds first: the variants of one seed share its data
        for config in experiment.runs.values():
            if config.tensorboard:
                check_installed()
            needs.append(prepare(config, seed, world).need)  # one by one: all would not fit
    return max((need for need in needs if need is not None), key=lambda need: need.total, default=None)


def _run(
    prepared: Prepared, place: Path, course: Course, stage: int, config: RunConfig, lock: FolderLock
) -> Iterator[dict[str, Any]]:
    """The records of one run: those that are there already, then new ones; if nodes are lost, those of the others."""
    rows: State | None = None
    going = course.begin(stage)
    while going:
        training = None
        try:
            training = _started(prepared, place, course) if course.is_whole else _left(prepared, place, course, rows)
            if course.is_whole:
                yield from records_before(place / METRICS, training.t)[0]
            yield from _records(prepared, training, place, course, config)
            return
        except NetworkError as error:
            rows = rows if training is None else training.state()
            # The last step is done again, so that there is a last record.
            t = course.t if training is None else min(training.t, prepared.steps - 1)
            going = course.lose(error, stage, t)
            if course.world.rank == 0:
                hold(lock, course.world)  # its process may be the lost one


def _started(prepared: Prepared, place: Path, course: Course) -> Training:
    """The run at its beginning, or at its last checkpoint."""
    saved, names = course.world.decide(lambda: clear_run(place))
    course.names = names or list(range(prepared.nodes))
    training = prepared.start_with(course.names)
    if saved > 0:
        load_checkpoint(training, place / CHECKPOINT, saved)
    return training


def _left(prepared: Prepared, place: Path, course: Course, rows: State | None) -> Training:
    """The run with the nodes that are left, with their rows, and at the step that the farthest has come to."""
    saved = newest_step(place / CHECKPOINT) if rows is None else None
    if course.names is None:  # lost before this process has begun
        course.names = names_of_nodes(place / CHECKPOINT, saved) if saved else list(range(prepared.nodes))
    if saved:
        rows = read_state(place / CHECKPOINT, course.own_places(len(course.names)), saved)
    training = prepared.start_with(course.remaining(course.names))
    if rows is None:
        training.begin_at(course.t)
    else:
        training.take_over(rows, course.t)
    if course.world.rank == 0:
        cut_run(place, course.t)
    return training


def _records(
    prepared: Prepared, training: Training, place: Path, course: Course, config: RunConfig
) -> Iterator[dict[str, Any]]:
    """New records, written as they come."""
    world, saved, n = course.world, training.t, training.network.graph.n
    writes, whole = world.rank == 0, n == prepared.nodes
    if writes and whole and not (place / SCENE).exists():
        (place / SCENE).write_text(json.dumps(scene(config, training, prepared.steps)), "utf-8")
    lost = _lost(course)
    with ExitStack() as files:
        mixings = prepared.steps // training.local_steps
        path = place / WEIGHTS if writes and whole else None  # a picture is of all nodes
        weights = files.enter_context(closing(WeightsLog(path, training.network.graph, mixings, training.local_steps)))
        metrics, timings = (
            files.enter_context((place / name if writes else Path(os.devnull)).open("a", encoding="utf-8"))
            for name in (METRICS, TIMINGS)
        )
        path = place if writes and config.tensorboard else None
        board = files.enter_context(closing(TensorBoardLog(path, training.network.graph, saved, prepared.steps)))

        def see(step: Step) -> None:
            weights.see(step)
            board.see(step)

        flushed = time.monotonic()
        for record in prepared.records_of(training, see):
            if not whole:
                record.values["nodes"] = n
            if lost:
                record.values["lost_nodes"], lost = lost, ""  # told once
            board.add(record)
            metrics.write(record.to_json() + "\n")
            timings.write(record.timings_to_json() + "\n")
            due = training.t - saved >= prepared.checkpoint_every or training.t == prepared.steps
            if due or time.monotonic() - flushed > _WATCHED:
                for file in (metrics, timings, weights, board):
                    file.flush()  # a checkpoint must not know of steps that the records do not
                flushed = time.monotonic()
            if due:
                save_checkpoint(training, place / CHECKPOINT)
                saved = training.t
            yield {"step": record.step, **record.values}


def _lost(course: Course) -> str:
    """The nodes that were lost since the run has begun, or was resumed."""
    assert course.names is not None
    left = set(course.remaining(course.names))
    return listed([name for name in course.names if name not in left])
