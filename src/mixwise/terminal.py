"""What the command line shows while it runs, and at the end."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mixwise.experiments import Experiment
    from mixwise.experiments.memory import Need
    from mixwise.experiments.runner import Progress
    from mixwise.network.world import World
    from mixwise.report.table import Summary

# Names and paths are shown as they are, also those with brackets, and lines are not broken.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

_WINDOW, _SHORTEST, _QUIET = 5.0, 0.05, 30.0  # seconds: a rate is of the last 5; a log hears something every 30


def fail(message: str, status: int = 2) -> int:
    """Say in one line what is wrong; the exit code."""
    err.print(f"error: {' '.join(message.split())}")
    return status


@contextmanager
def notes_shown(speaks: bool) -> Iterator[None]:
    """What the library notes meanwhile (tokens being made, a new head) is shown, each note once, if `speaks`."""
    log, handler = logging.getLogger("mixwise"), _Notes() if speaks else logging.NullHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _Notes(logging.Handler):
    """Prints a note unless it was printed before."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        note = record.getMessage()
        if note not in self._said:
            self._said.add(note)
            err.print(note)


def run_with_progress(experiment: Experiment, folder: Path, resume: bool, world: World) -> Summary:
    """A live bar in a terminal; elsewhere a line per run, and one every half minute. Process 0 shows it."""
    from mixwise.experiments.runner import run_experiment

    total = len(experiment.recipe.seeds) * len(experiment.runs)
    columns = (
        TextColumn("{task.description}", justify="left"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=err, transient=True, disable=not err.is_terminal or world.rank > 0) as bars:
        bar = bars.add_task("preparing", total=total, detail="")
        watch = Watch()
        done, printed = 0.0, watch.clock()

        def on_progress(progress: Progress) -> None:
            nonlocal done, printed
            figures = watch(progress)
            name, last = f"{progress.variant}, seed {progress.seed}", progress.step + 1 == progress.steps
            share = (progress.step + 1) / progress.steps
            bars.update(bar, completed=done + share, description=name, detail=figures)
            done += last
            if world.rank > 0:  # process 0 speaks; after a loss that may be another one
                return
            if "lost_nodes" in progress.values:
                left = f"{progress.values['nodes']} go on at step {progress.step}"
                err.print(f"{name}: nodes {progress.values['lost_nodes']} are lost; {left}")
            if not err.is_terminal and (last or watch.clock() - printed > _QUIET):
                err.print(f"{name}: {figures}")
                printed = watch.clock()

        def on_need(need: Need) -> None:
            if world.rank == 0:
                err.print(f"memory: {need}")

        return run_experiment(experiment, folder, on_progress, resume, world, on_need)


class Watch:
    """Where a run is, in a few words: step, loss, the last known accuracy, and steps per second of late.

    >>> ticks = iter([0.0, 2.0, 9.0])
    >>> watch = Watch(clock=lambda: next(ticks))
    >>> from mixwise.experiments.runner import Progress
    >>> watch(Progress("dsgd", 0, 0, 100, {"loss": 0.5}))
    'step 1/100, loss 0.5'
    >>> watch(Progress("dsgd", 0, 10, 100, {"loss": 0.25}))
    'step 11/100, loss 0.25, 5.0 steps/s'
    >>> watch(Progress("dsgd", 0, 11, 100, {"loss": 0.25, "accuracy": 0.9}))  # evaluation is not a step
    'step 12/100, loss 0.25, accuracy 90.0%, 5.0 steps/s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._run: tuple[str, int] | None = None
        self._seen: deque[tuple[float, int]] = deque()  # (when, step)
        self._accuracy: float | None = None
        self._rate = ""

    def __call__(self, progress: Progress) -> str:
        """The words for a record that has just come."""
        now = self.clock()
        if self._run != (progress.variant, progress.seed):
            self._run, self._accuracy, self._rate = (progress.variant, progress.seed), None, ""
            self._seen.clear()
        if "accuracy" in progress.values:  # the time since the last record went into the evaluation
            self._accuracy = progress.values["accuracy"]
            self._seen.clear()
        self._seen.append((now, progress.step))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW:
            self._seen.popleft()
        seconds, steps = now - self._seen[0][0], progress.step - self._seen[0][1]
        if steps > 0 and seconds >= _SHORTEST:  # shorter: a guess, or records that were there already
            self._rate = _rate(steps / seconds)
        figures = progress_figures(progress, self._accuracy)
        return f"{figures}, {self._rate}" if self._rate else figures


def progress_figures(progress: Progress, accuracy: float | None) -> str:
    """Step, loss, accuracy."""
    figures = [f"step {progress.step + 1}/{progress.steps}", f"loss {progress.values['loss']:.3g}"]
    if accuracy is not None:
        figures.append(f"accuracy {accuracy:.1%}")
    return ", ".join(figures)


def _rate(steps: float) -> str:
    """Steps per second, or, below one, seconds per step."""
    return f"{steps:.{0 if steps >= 10 else 1}f} steps/s" if steps >= 1 else f"{1 / steps:.1f} s/step"


def progress_line(progress: Progress) -> str:
    """Where a run is, in one line."""
    figures = progress_figures(progress, progress.values.get("accuracy"))
    return f"{progress.variant}, seed {progress.seed}: {figures}"


def summary_table(summary: Summary) -> Table:
    """The result table, the best of each column in bold."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for metric in summary.metrics:
        table.add_column(metric.replace("_", " "), justify="right", no_wrap=False)
    for variant, cells in summary.rows.items():
        best = ("bold" if cell.mean == summary.best(i) else "" for i, cell in enumerate(cells))
        shown = (Text(str(cell), style) for cell, style in zip(cells, best, strict=True))
        table.add_row(variant, *shown)
    return table
