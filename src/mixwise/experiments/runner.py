"""Runs an experiment and writes its folder (`experiment_folder` lists the files).

With several processes, each of them runs the nodes that it owns and writes those into checkpoints; process 0 writes
everything else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError, DivergedError, NetworkError, unknown
from mixwise.experiments import experiment_folder as files
from mixwise.experiments.build import Prepared
from mixwise.experiments.experiment_folder import CHECKPOINT, FolderLock
from mixwise.experiments.pairing import Start, check_paired
from mixwise.experiments.recipe import Experiment
from mixwise.network import block
from mixwise.network.survivors import listed
from mixwise.network.world import World
from mixwise.protocols import State
from mixwise.report.divergence import Divergence, read_divergence, write_divergence
from mixwise.report.figures import save_curves
from mixwise.report.folder import read_folder
from mixwise.report.page import save_page
from mixwise.report.summary import Summary, summarize
from mixwise.storage import write_text
from mixwise.training import Step, Training, run_log
from mixwise.training.checkpoint import load_checkpoint, names_of_nodes, newest_step, read_state, save_checkpoint
from mixwise.training.record_files import METRICS, cut_run, records_before

_log = logging.getLogger(__name__)
_WATCHED = 1.0  # seconds after which new records are visible to readers of the folder


@dataclass(frozen=True)
class Progress:
    """The progress of an experiment, after each record, and when a run has diverged."""

    variant: str
    seed: int
    step: int  # the step of the record
    steps: int  # the number of steps in this run
    values: dict[str, Any]
    divergence: Divergence | None = None


OnProgress = Callable[[Progress], None]


def run_experiment(
    experiment: Experiment,
    folder: Path,
    on_progress: OnProgress = lambda progress: None,
    resume: bool = False,
    world: World | None = None,
) -> Summary:
    """Run every variant with every seed; a wrong value is reported before anything is written.

    The memory that the largest run needs, if that is much, is logged. In a simulation, a run that diverges is recorded
    as such, and the next one begins.

    Args:
        experiment: the runs.
        folder: the run folder; with several processes, all of them must see it.
        on_progress: called after each record.
        resume: whether the folder is one that an earlier call with the same experiment left behind. Finished runs are
            read, not run again, and an interrupted run resumes from its last checkpoint.
        world: the processes, which must all call this; by default this one alone.
    """
    recipe, world = experiment.recipe, world or World()
    with files.writing(folder) as lock, ExitStack() as failed:
        cursor = RunCursor(world)
        while cursor.begin(0):
            try:
                starts = _check(experiment, world)
                files.open_folder(lock, experiment, resume, world, starts)
                break
            except NetworkError as error:
                cursor.lose(error, 0, 0)
        if world.size == 1 and not resume:
            failed.enter_context(files.emptied_without_records(folder))
        runs = [(variant, config, seed) for variant, config in experiment.runs.items() for seed in recipe.seeds]
        for stage, (variant, config, seed) in enumerate(runs, 1):
            prepared = config.prepare(seed, world, check=False)
            place, report = folder / variant / f"seed-{seed}", partial(Progress, variant, seed, steps=prepared.steps)
            try:
                for values in _run(prepared, place, cursor, stage, lock):
                    on_progress(report(step=values["step"], values=values))
            except DivergedError as error:
                if world.size > 1:  # they cannot agree on it: it may be known to one of them only
                    raise
                divergence = write_divergence(error, place)
                on_progress(report(step=divergence.step, values={}, divergence=divergence))
        world.decide(lambda: None)  # process 0 has written all records
        found = read_folder(folder)  # not kept in memory: a run may have millions of them
        summary = summarize(found, strict=True)
        if world.rank == 0:
            write_text(folder / "summary.csv", summary.to_csv())
            write_text(folder / "summary.md", summary.to_markdown(recipe.name))
            save_curves(found)
            save_page([folder], folder / "report.html")
        return summary


def _check(experiment: Experiment, world: World) -> dict[int, Start]:
    """Find wrong values, and runs that do not fit, before anything is written; return what each seed starts with."""
    needs = []
    notes: dict[str, list[str]] = {}  # each with the variants that it is about
    starts: dict[tuple[int, str], Start] = {}
    for seed in experiment.recipe.seeds:  # seeds first: the variants of one seed share its data
        for variant, config in experiment.runs.items():
            prepared = config.prepare(seed, world)
            if prepared.tensorboard:
                run_log.check_tensorboard()
            if prepared.need is not None:
                needs.append(prepared.need)  # not the run: all of them would not fit
            if prepared.begun is not None:
                starts[seed, variant] = prepared.begun
            if prepared.note and seed == experiment.recipe.seeds[0]:
                notes.setdefault(prepared.note, []).append(variant)
            for metric in experiment.recipe.metrics:
                if prepared.metrics is not None and metric not in prepared.metrics:
                    raise ConfigError("metrics: " + unknown("metric", metric, prepared.metrics))
    check_paired(starts)
    for note, variants in notes.items():
        _log.warning("%s: %s", ", ".join(variants), note)
    if needs:
        _log.info("memory: %s", max(needs, key=lambda need: need.total))
    return {seed: start for (seed, _), start in starts.items()}


# --- one run ---
def _run(prepared: Prepared, place: Path, cursor: RunCursor, stage: int, lock: FolderLock) -> Iterator[dict[str, Any]]:
    """The records of one run: those in the folder, then new ones; after a loss of nodes, those of the others."""
    if (known := read_divergence(place)) is not None and cursor.world.size == 1:
        yield from records_before(place / METRICS, known.step).records
        raise known.error
    rows: State | None = None
    while cursor.begin(stage):
        training = None
        try:
            training = _started(prepared, place, cursor) if cursor.is_whole else _left(prepared, place, cursor, rows)
            if cursor.is_whole:
                yield from records_before(place / METRICS, training.t).records
            yield from _records(prepared, training, place, cursor)
            return
        except NetworkError as error:
            rows = rows if training is None else training.state()
            # The last step is done again, so that the run ends with a record.
            t = cursor.t if training is None else min(training.t, prepared.steps - 1)
            cursor.lose(error, stage, t)
            if cursor.world.rank == 0:
                lock.take(cursor.world)  # its process may be the lost one


def _started(prepared: Prepared, place: Path, cursor: RunCursor) -> Training:
    """The run at its beginning, or at its last checkpoint."""
    saved, cursor.names = cursor.world.decide(lambda: files.clear_run(place, prepared.nodes, prepared.recorded))
    training = prepared.start(cursor.names)
    if saved > 0:
        load_checkpoint(training, place / CHECKPOINT, saved)
    return training


def _left(prepared: Prepared, place: Path, cursor: RunCursor, rows: State | None) -> Training:
    """The run of the remaining nodes, with their rows, at the furthest step that any process has reached."""
    saved = newest_step(place / CHECKPOINT) if rows is None else None
    if cursor.names is None:  # lost before this process has begun
        cursor.names = names_of_nodes(place / CHECKPOINT, saved) if saved else list(range(prepared.nodes))
    if saved:
        rows = read_state(place / CHECKPOINT, cursor.own_places(len(cursor.names)), saved)
    training = prepared.start(cursor.remaining(cursor.names))
    if rows is None:
        training.begin_at(cursor.t)
    else:
        training.take_over(rows, cursor.t)
    if cursor.world.rank == 0:
        cut_run(place, cursor.t)
    return training


def _records(prepared: Prepared, training: Training, place: Path, cursor: RunCursor) -> Iterator[dict[str, Any]]:
    """New records, written as they come."""
    saved, n, flushed = training.t, training.network.graph.n, time.monotonic()
    assert cursor.names is not None
    lost = listed(sorted({*cursor.names} - {*cursor.remaining(cursor.names)}))  # since the run began or was resumed
    logs = []
    if cursor.world.rank == 0:
        scene = prepared.scene(training) if n == prepared.nodes else None  # pictures are of all nodes
        logs = run_log.open_logs(
            place, scene, training.network.graph, t=saved, steps=prepared.steps, local_steps=training.local_steps,
            tensorboard=prepared.tensorboard,
        )  # fmt: skip

    small = n == prepared.nodes and run_log.neighborhood(training.network.graph) is None
    pictured = prepared.pictured if small else set()

    def see(step: Step) -> None:
        for log in logs:
            log.see(step.t, step.plan)

    with ExitStack() as stack:
        for log in logs:
            stack.callback(log.file.close)
        for record in prepared.records_of(training, see):
            if n < prepared.nodes:
                record.values["nodes"] = n
            if lost:
                record.values["lost_nodes"], lost = lost, ""  # reported once
            nodes = run_log.node_values(training, "accuracy" in record.values) if record.step in pictured else None
            for log in logs:
                log.add(record, nodes)
            due = training.t - saved >= prepared.checkpoint_every or training.t == prepared.steps
            if due or time.monotonic() - flushed > _WATCHED:
                for log in logs:  # before a checkpoint: it must not know of steps that the records do not
                    log.flush() if due else log.file.flush()
                flushed = time.monotonic()
            if due:
                save_checkpoint(training, place / CHECKPOINT)
                saved = training.t
            yield {"step": record.step, **record.values}


class RunCursor:
    """The position of one process in an experiment, so that the processes left after a loss continue at the same point.

    An experiment has stages: the checks, then one run after the other. A run has steps. Processes may be at different
    points when they notice a loss; all continue at the furthest. A process that was still at the end of an earlier
    stage leaves that stage as it is.

    Attributes:
        world: the processes that are left.
        stage, t: where to continue.
        crew: the processes that have begun the stage, by their rank at the first start.
        names: the nodes that the stage has begun with; None while that is unknown.
    """

    def __init__(self, world: World) -> None:
        self.world, self.crew = world, world.members
        self.stage, self.t = -1, 0
        self.names: list[int] | None = None

    def begin(self, stage: int) -> bool:
        """Whether a stage is to be begun, or, after a loss, still to be done: others may have been beyond it."""
        if stage > self.stage:
            self.stage, self.t, self.crew, self.names = stage, 0, self.world.members, None
        return stage == self.stage

    def lose(self, error: NetworkError, stage: int, t: int) -> None:
        """Form a group with the remaining processes, or raise the error."""
        before = self.world.members
        self.stage, self.t = self.world.reform(error, (stage, t))
        if self.stage > stage:  # it was begun by all processes before the loss
            self.crew, self.names = before, None

    @property
    def is_whole(self) -> bool:
        """Whether all processes that have begun the stage are left."""
        return self.crew == self.world.members

    def own_places(self, n: int) -> range:
        """The places of this process's nodes among the n that the stage has begun with."""
        return block(n, self.crew.index(self.world.members[self.world.rank]), len(self.crew))

    def remaining(self, names: list[int]) -> list[int]:
        """Of the nodes that the stage has begun with, those whose process is left; each process keeps its own."""
        blocks = (
            block(len(names), i, len(self.crew)) for i, rank in enumerate(self.crew) if rank in self.world.members
        )
        return [names[place] for places in blocks for place in places]
