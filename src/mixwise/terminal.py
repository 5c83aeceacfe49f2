"""What the command line shows while it runs, and at the end."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from mixwise.experiments import Experiment, run_experiment
from mixwise.experiments.runner import Progress
from mixwise.report.table import Summary

out = Console()
err = Console(stderr=True)


def run_with_progress(experiment: Experiment, folder: Path, resume: bool) -> Summary:
    """A live bar in a terminal; elsewhere a line per run."""
    total = len(experiment.recipe.seeds) * len(experiment.runs)
    columns = (
        TextColumn("{task.description}", justify="left"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task("preparing", total=total, detail="")
        done = 0.0

        def on_progress(progress: Progress) -> None:
            nonlocal done
            share = (progress.step + 1) / progress.steps
            name = f"{progress.variant}, seed {progress.seed}"
            bars.update(bar, completed=done + share, description=name, detail=_progress_figures(progress))
            if progress.step + 1 == progress.steps:
                done += 1
                if not err.is_terminal:
                    err.print(progress_line(progress), highlight=False)

        return run_experiment(experiment, folder, on_progress, resume)


def _progress_figures(progress: Progress) -> str:
    figures = [f"step {progress.step + 1}/{progress.steps}", f"loss {progress.values['loss']:.3g}"]
    if "accuracy" in progress.values:
        figures.append(f"accuracy {progress.values['accuracy']:.1%}")
    return ", ".join(figures)


def progress_line(progress: Progress) -> str:
    """Where a run is, in one line."""
    return f"{progress.variant}, seed {progress.seed}: {_progress_figures(progress)}"


def summary_table(summary: Summary) -> Table:
    """The result table, the best of each column in bold."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for metric in summary.metrics:
        table.add_column(metric.replace("_", " "), justify="right", no_wrap=False)
    for variant, cells in summary.rows.items():
        shown = (f"[bold]{cell}[/bold]" if cell.mean == summary.best(i) else str(cell) for i, cell in enumerate(cells))
        table.add_row(variant, *shown)
    return table
