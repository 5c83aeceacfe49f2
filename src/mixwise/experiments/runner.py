"""Runs an experiment and leaves a folder with everything in it.

DIR/config.yaml                           the experiment as it was run; itself a recipe
DIR/<variant>/seed-<s>/metrics.jsonl      one line per record, the same bits for the same seed
DIR/<variant>/seed-<s>/timings.jsonl      wall-clock seconds of the same steps
DIR/<variant>/seed-<s>/checkpoint.safetensors    where to go on; at the end, the result
DIR/summary.csv, summary.md, figures/     the last window of every run, averaged over seeds; curves
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError
from mixwise.experiments.build import Prepared, prepare
from mixwise.experiments.recipe import Experiment
from mixwise.report.figures import save_curves
from mixwise.report.results import Results
from mixwise.report.table import Summary, summarize
from mixwise.train.checkpoint import load_checkpoint, save_checkpoint

METRICS, TIMINGS, CHECKPOINT = "metrics.jsonl", "timings.jsonl", "checkpoint.safetensors"


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
    experiment: Experiment, folder: Path, on_progress: OnProgress = lambda progress: None, resume: bool = False
) -> Summary:
    """Run every variant with every seed; a wrong value is found before anything is written.

    With `resume`, the folder is one that an earlier call with the same experiment left behind: runs that are finished
    are read, not run again, and a run that was interrupted goes on from its last checkpoint.
    """
    recipe = experiment.recipe
    for seed in recipe.seeds:  # seeds first: the variants of one seed share its data
        for config in experiment.runs.values():
            prepare(config, seed)  # a check; all of them at once would not fit into memory
    _open(folder, experiment, resume)
    results: Results = {variant: {} for variant in experiment.runs}
    for variant, config in experiment.runs.items():
        for seed in recipe.seeds:
            prepared = prepare(config, seed)
            steps = results[variant][seed] = []
            for values in _run(prepared, folder / variant / f"seed-{seed}"):
                steps.append(values)
                on_progress(Progress(variant, seed, values["step"], prepared.steps, values))
    summary = summarize(results, recipe.metrics, recipe.window)
    (folder / "summary.csv").write_text(summary.to_csv(), "utf-8")
    (folder / "summary.md").write_text(summary.to_markdown(recipe.name), "utf-8")
    save_curves(results, recipe.metrics, recipe.window, folder / "figures", recipe.name)
    return summary


def _run(prepared: Prepared, place: Path) -> Iterator[dict[str, Any]]:
    """The records of one run: those that are there already, then new ones, written as they come."""
    place.mkdir(parents=True, exist_ok=True)
    training = prepared.start()
    if (place / CHECKPOINT).exists():
        load_checkpoint(training, place / CHECKPOINT)
    _truncated(place / TIMINGS, training.t)
    yield from _truncated(place / METRICS, training.t)
    with ExitStack() as files:
        metrics = files.enter_context((place / METRICS).open("a", encoding="utf-8"))
        timings = files.enter_context((place / TIMINGS).open("a", encoding="utf-8"))
        saved = training.t
        for record in prepared.records_of(training):
            metrics.write(record.to_json() + "\n")
            timings.write(record.timings_to_json() + "\n")
            if training.t - saved >= prepared.checkpoint_every or training.t == prepared.steps:
                metrics.flush()  # a checkpoint must not know of steps that the records do not
                timings.flush()
                save_checkpoint(training, place / CHECKPOINT)
                saved = training.t
            yield {"step": record.step, **record.values}


def _truncated(path: Path, steps: int) -> list[dict[str, Any]]:
    """The records of the first `steps` steps; later ones, and a line that was cut off, leave the file."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    kept = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            break
        if record["step"] >= steps:
            break
        kept.append(record)
    if len(kept) < len(lines):  # cut, not written anew: a run that is killed here loses nothing that it needs
        os.truncate(path, sum(map(len, lines[: len(kept)])))
    return kept


def _open(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Make the folder, or, to resume, see that it belongs to this experiment."""
    config = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}; choose another with --out") from None
    if occupied and not resume:
        raise ConfigError(
            f"the folder {folder} is not empty, and no run is ever overwritten; "
            f"choose another with --out, or go on there with --resume"
        )
    if occupied:
        if not config.exists() or _without_comments(config.read_text("utf-8")) != experiment.to_yaml():
            raise ConfigError(
                f"{folder} holds another experiment; go on with it: mixwise run {config} --out {folder} --resume"
            )
        return
    config.write_text(_provenance() + experiment.to_yaml(), "utf-8")


def _without_comments(text: str) -> str:
    return "".join(line + "\n" for line in text.splitlines() if not line.startswith("#"))


def _provenance() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("mixwise", "torch", "numpy", "scipy", "piqp"))
    return f"# {packages}, Python {platform.python_version()}\n"
