"""Output of the command line: progress while it runs, and tables at the end."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from mixwise.experiments.runner import Progress
    from mixwise.network.world import World
    from mixwise.report.summary import Summary
    from mixwise.report.table import Table as Results

# Names and paths are printed as they are, even with brackets in them; lines are not broken.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
if not out.is_terminal and "COLUMNS" not in os.environ:
    out.width = 160  # a file or a pipe has room for whole tables

_WINDOW, _SHORTEST, _QUIET = 5.0, 0.05, 30.0  # seconds: a rate covers the last 5; a log gets a line every 30


def fail(message: str, status: int = 2) -> int:
    """Print an error in one line; returns the exit code."""
    err.print(f"error: {' '.join(message.split())}")
    return status


@contextmanager
def notes_shown(prints: bool) -> Iterator[None]:
    """Inside the context, print each of the library's log messages once, if `prints`."""
    log, handler = logging.getLogger("mixwise"), _Notes() if prints else logging.NullHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _Notes(logging.Handler):
    """Prints each message once."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, unless it was printed before."""
        if (note := record.getMessage()) not in self._printed:
            self._printed.add(note)
            err.print(note)


# --- progress ---
@contextmanager
def progress_shown(world: World, runs: int | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of some runs: a live bar in a terminal; elsewhere a line per run and one every half minute.

    Yields the function to call after each record. Only process 0 prints.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    bar = ProgressBar(
        TextColumn("{task.description}", justify="left"), BarColumn(), TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal or world.rank > 0,
    )  # fmt: skip
    with bar:
        task, watch = bar.add_task("preparing", total=runs, detail=""), Watch()
        done, printed = 0.0, watch.clock()

        def on_progress(progress: Progress) -> None:
            nonlocal done, printed
            figures, point = watch(progress), f", {progress.point}" if progress.point else ""
            name = f"{progress.variant}, seed {progress.seed}{point}"
            last = progress.step + 1 == progress.steps or progress.divergence is not None
            part = 1.0 if last else (progress.step + 1) / progress.steps
            bar.update(task, completed=done + part, description=name, detail=figures)
            done += last
            if world.rank > 0:
                return
            if progress.divergence is not None:
                err.print(f"{name}: {figures}")
            elif not err.is_terminal and (last or watch.clock() - printed > _QUIET):
                err.print(f"{name}: {figures}")
                printed = watch.clock()

        yield on_progress


class Watch:
    """Describes the state of a run in a few words: step, loss, last accuracy, and recent steps per second.

    >>> from mixwise.experiments.runner import Progress
    >>> ticks = iter([0.0, 2.0, 9.0])
    >>> watch = Watch(clock=lambda: next(ticks))
    >>> watch(Progress("dsgd", 0, 0, 100, {"loss": 0.5}))
    'step 1/100, loss 0.5'
    >>> watch(Progress("dsgd", 0, 10, 100, {"loss": 0.25}))
    'step 11/100, loss 0.25, 5.0 steps/s'
    >>> watch(Progress("dsgd", 0, 11, 100, {"loss": 0.25, "accuracy": 0.9}))  # evaluation is not a step
    'step 12/100, loss 0.25, accuracy 90.0%, 5.0 steps/s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._run: tuple[str, int, str] | None = None
        self._seen: deque[tuple[float, int]] = deque()  # (time, step)
        self._accuracy: float | None = None
        self._rate = ""

    def __call__(self, progress: Progress) -> str:
        """The words for a new record."""
        if (divergence := progress.divergence) is not None:
            return f"diverged: {divergence.message}"
        now = self.clock()
        if self._run != (run := (progress.variant, progress.seed, progress.point)):
            self._run, self._accuracy, self._rate = run, None, ""
            self._seen.clear()
        if "accuracy" in progress.values:  # the time since the last record was spent on the evaluation
            self._accuracy = progress.values["accuracy"]
            self._seen.clear()
        self._seen.append((now, progress.step))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW:
            self._seen.popleft()
        seconds, steps = now - self._seen[0][0], progress.step - self._seen[0][1]
        if steps > 0 and seconds >= _SHORTEST:  # less is a guess, or records read from a file
            fast = f"{steps / seconds:.{0 if steps / seconds >= 10 else 1}f} steps/s"
            self._rate = f", {fast}" if steps >= seconds else f", {seconds / steps:.1f} s/step"
        figures = f"step {progress.step + 1}/{progress.steps}, loss {progress.values['loss']:.3g}"
        accuracy = "" if self._accuracy is None else f", accuracy {self._accuracy:.1%}"
        return figures + accuracy + self._rate


# --- tables ---
def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; only the last column is wrapped."""
    table = Table(*(Column(name, no_wrap=name != head[-1]) for name in head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def print_results(summary: Summary) -> None:
    """Print a table for each topology, with its paired differences."""
    for results in summary.tables:
        out.print(results_table(results))
        out.print(f"{results.caption}.", style="dim")
        if found := results.differences():
            out.print(f"\n{results.comparison}:")
            out.print(columns(("", ""), list(found.items())))
    for note in summary.notes:
        out.print(f"\n{note}")


def results_table(results: Results) -> Group:
    """The result table, the best of each column in bold; columns that do not fit beside each other follow below."""
    rows = [[text for text, _ in results.texts(row)] for row in results.shown]
    heads = [metric.replace("_", " ") for metric in results.metrics]
    widths = [max(len(text) for text in [*head.split(), *cells]) + 3 for head, *cells in zip(heads, *rows, strict=True)]
    names = max(len(results.name(row)) for row in results.shown) + 2
    tables: list[list[int]] = [[]]
    for column, width in enumerate(widths):
        if tables[-1] and names + sum(widths[c] for c in tables[-1]) + width > out.width:
            tables.append([])
        tables[-1].append(column)
    return Group(*(_table_of(results, columns) for columns in tables))


def _table_of(results: Results, columns: Sequence[int]) -> Table:
    metrics = (Column(results.metrics[c].replace("_", " "), justify="right") for c in columns)
    table = Table(Column("variant", no_wrap=True), *metrics, box=SIMPLE_HEAD, pad_edge=False)
    for row in results.shown:
        texts = results.texts(row)
        table.add_row(
            results.name(row), *(Text(texts[c][0], "bold" if texts[c][1] else "", no_wrap=True) for c in columns)
        )
    return table
