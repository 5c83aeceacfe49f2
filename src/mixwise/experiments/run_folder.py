"""A run folder read back: its recipe, its records, its table; what a notebook starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError, unknown
from mixwise.experiments.config import Recipe
from mixwise.experiments.recipe import load_recipe
from mixwise.report.folder import read_folder
from mixwise.report.notebook import curve_svg, legend_html
from mixwise.report.results import Results, recorded_steps, series
from mixwise.report.table import Summary, summarize


@dataclass(frozen=True)
class Run:
    """What `mixwise run` left behind, finished or not; in a notebook, a table and curves.

    Attributes:
        folder: where it lies.
        recipe: the experiment as it was run.
        results: the records, by variant and seed; only of runs that have any.
        missing: what is not there, in words; empty if the run is finished.
    """

    folder: Path
    recipe: Recipe
    results: Results
    missing: tuple[str, ...]

    @cached_property
    def summary(self) -> Summary:
        """The table of what is there: the variants that have all of the recipe's metrics."""
        complete = {
            variant: runs
            for variant, runs in self.results.items()
            if all(any(metric in step for step in steps) for metric in self.recipe.metrics for steps in runs.values())
        }
        if not complete:
            raise ConfigError(f"{self.folder} holds no run with {', '.join(self.recipe.metrics)} yet; let it go on")
        return summarize(complete, self.recipe.metrics, self.recipe.window)

    def curve(self, variant: str, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The steps (T,) at which the metric was recorded, and its values (seeds, T), as far as all seeds have come."""
        if variant not in self.results:
            raise ConfigError(f"{self.folder}: " + unknown("variant", variant, self.results))
        runs = list(self.results[variant].values())
        curves = [series(steps, metric) for steps in runs]
        shortest = min(map(len, curves))
        return recorded_steps(runs[0], metric)[:shortest], np.array([curve[:shortest] for curve in curves])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every record with its variant and seed: `pandas.DataFrame(run.rows())`."""
        for variant, runs in self.results.items():
            for seed, steps in runs.items():
                for values in steps:
                    yield {"variant": variant, "seed": seed, **values}

    def __repr__(self) -> str:
        runs = sum(map(len, self.results.values()))
        rest = ", not finished" if self.missing else ""
        return f"Run({str(self.folder)!r}: {self.recipe.name}, {len(self.results)} variants, {runs} runs{rest})"

    def _repr_html_(self) -> str:
        """The table and the curves of the recipe's metrics."""
        head = f"<h4>{escape(self.recipe.name)}</h4><p>{escape(self.recipe.description)}</p>"
        if self.missing:
            head += f"<p>Not all is there: {escape('; '.join(self.missing))}.</p>"
        try:
            summary = self.summary
        except ConfigError as error:
            return f"{head}<p>{escape(str(error))}</p>"
        shown = {variant: self.results[variant] for variant in summary.rows}
        curves = "".join(curve_svg(shown, metric, self.recipe.window) for metric in self.recipe.metrics)
        return head + summary._repr_html_() + legend_html(list(shown)) + f"<div>{curves}</div>"


def load_run(folder: str | Path) -> Run:
    """The run in a folder that `mixwise run` has made.

    A run that is still going on, or was interrupted, is read as far as it has come.
    """
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no config.yaml; name a folder that mixwise run has made")
    recipe = load_recipe(str(folder / "config.yaml"))
    found = read_folder(folder)
    results: Results = {}
    for run in found.runs:
        if run.records:
            results.setdefault(run.variant, {})[run.seed] = run.records
    return Run(folder, recipe, results, tuple(found.problems))
