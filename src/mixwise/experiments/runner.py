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

from mixwise.errors import ConfigError, DivergedError, unknown
from mixwise.experiments import experiment_folder as files
from mixwise.experiments.build import Prepared
from mixwise.experiments.experiment_folder import CHECKPOINT
from mixwise.experiments.pairing import Start, check_paired
from mixwise.experiments.recipe import Experiment
from mixwise.network.world import World
from mixwise.report.divergence import Divergence, read_divergence, write_divergence
from mixwise.report.figures import save_curves
from mixwise.report.folder import read_folder
from mixwise.report.page import save_page
from mixwise.report.summary import Summary, summarize
from mixwise.storage import write_text
from mixwise.training import Step, Training, run_log
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint
from mixwise.training.record_files import METRICS, records_before

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
    point: str = ""  # of the grid, in a sweep


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
        starts = _check(experiment, world)
        files.open_folder(lock, experiment, resume, world, starts)
        if world.size == 1 and not resume:
            failed.enter_context(files.emptied_without_records(folder))
        runs = [(variant, config, seed) for variant, config in experiment.runs.items() for seed in recipe.seeds]
        for variant, config, seed in runs:
            prepared = config.prepare(seed, world, check=False)
            place, report = folder / variant / f"seed-{seed}", partial(Progress, variant, seed, steps=prepared.steps)
            try:
                for values in _run(prepared, place, world):
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
def _run(prepared: Prepared, place: Path, world: World) -> Iterator[dict[str, Any]]:
    """The records of one run: those in the folder, then new ones."""
    if (known := read_divergence(place)) is not None and world.size == 1:
        yield from records_before(place / METRICS, known.step).records
        raise known.error
    saved = world.decide(lambda: files.clear_run(place, prepared.recorded))
    training = prepared.start()
    if saved > 0:
        load_checkpoint(training, place / CHECKPOINT, saved)
    yield from records_before(place / METRICS, training.t).records
    yield from _records(prepared, training, place, world)


def _records(prepared: Prepared, training: Training, place: Path, world: World) -> Iterator[dict[str, Any]]:
    """New records, written as they come."""
    saved, flushed = training.t, time.monotonic()
    logs = []
    if world.rank == 0:
        logs = run_log.open_logs(
            place, prepared.scene(training), training.network.graph, t=saved, steps=prepared.steps,
            local_steps=training.local_steps, tensorboard=prepared.tensorboard,
        )  # fmt: skip

    pictured = prepared.pictured if run_log.neighborhood(training.network.graph) is None else set()

    def see(step: Step) -> None:
        for log in logs:
            log.see(step.t, step.plan)

    with ExitStack() as stack:
        for log in logs:
            stack.callback(log.file.close)
        for record in prepared.records_of(training, see):
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
