"""Runs an experiment and leaves a folder with everything in it.

DIR/config.yaml                           the experiment as it was run; itself a recipe
DIR/<variant>/seed-<s>/metrics.jsonl      one line per step, the same bits for the same seed
DIR/<variant>/seed-<s>/timings.jsonl      wall-clock seconds of the same steps
DIR/summary.csv, summary.md, figures/     the last window of every run, averaged over seeds; curves
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from mixwise.errors import ConfigError
from mixwise.experiments.build import prepare
from mixwise.experiments.recipe import Experiment
from mixwise.report.figures import save_curves
from mixwise.report.results import Results
from mixwise.report.table import Summary, summarize

OnStep = Callable[[str, int, int], None]  # variant, seed, step: for progress displays


def run_experiment(experiment: Experiment, folder: Path, on_step: OnStep = lambda variant, seed, step: None) -> Summary:
    """Run every variant with every seed; a wrong value is found before anything is written."""
    recipe = experiment.recipe
    runs = {
        (variant, seed): prepare(config, seed) for variant, config in experiment.runs.items() for seed in recipe.seeds
    }
    _create(folder)
    (folder / "config.yaml").write_text(_provenance() + experiment.to_yaml(), "utf-8")
    results: Results = {variant: {} for variant in experiment.runs}
    for (variant, seed), start in runs.items():
        steps = results[variant][seed] = []
        place = folder / variant / f"seed-{seed}"
        place.mkdir(parents=True)
        with ExitStack() as files:
            metrics = files.enter_context((place / "metrics.jsonl").open("w", encoding="utf-8"))
            timings = files.enter_context((place / "timings.jsonl").open("w", encoding="utf-8"))
            for record in start():
                metrics.write(record.to_json() + "\n")
                timings.write(record.timings_to_json() + "\n")
                steps.append(record.values)
                on_step(variant, seed, record.step)
    summary = summarize(results, recipe.metrics, recipe.window)
    (folder / "summary.csv").write_text(summary.to_csv(), "utf-8")
    (folder / "summary.md").write_text(summary.to_markdown(recipe.name), "utf-8")
    save_curves(results, recipe.metrics, recipe.window, folder / "figures", recipe.name)
    return summary


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}; choose another with --out") from None
    if occupied:
        raise ConfigError(
            f"the folder {folder} is not empty, and no run is ever overwritten; choose another with --out"
        )


def _provenance() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("mixwise", "torch", "numpy", "scipy", "piqp"))
    return f"# {packages}, Python {platform.python_version()}\n"
