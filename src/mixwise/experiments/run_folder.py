"""A run folder read back into Python, for notebooks: its recipe, its records and its table."""

from __future__ import annotations

import base64
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
from mixwise.graphs.drawing import svg
from mixwise.report.figures import curves_figure
from mixwise.report.folder import read_folder
from mixwise.report.records import Results, Steps, is_number, series
from mixwise.report.table import Summary, summarize


@dataclass(frozen=True)
class Run:
    """The results of `mixwise run`, finished or not; in a notebook, a table and curves.

    Attributes:
        folder: the run folder.
        recipe: the experiment as it was run.
        results: the records, by variant and seed; only of runs that have any.
        missing: a list of what is missing, in words; empty if the run is finished.
    """

    folder: Path
    recipe: Recipe
    results: Results
    missing: tuple[str, ...]

    @cached_property
    def summary(self) -> Summary:
        """The table of the runs that have recorded all metrics of the recipe."""
        complete = {variant: self._with(variant, *self.recipe.metrics) for variant in self.results}
        complete = {variant: runs for variant, runs in complete.items() if runs}
        if not complete:
            raise ConfigError(f"{self.folder} holds no run with {', '.join(self.recipe.metrics)} yet; let it continue")
        return summarize(complete, self.recipe.metrics, self.recipe.window)

    def _with(self, variant: str, *metrics: str) -> dict[int, Steps]:
        """The runs of a variant that have recorded these metrics, by seed."""
        return {
            seed: steps
            for seed, steps in self.results[variant].items()
            if all(any(is_number(step.get(metric)) for step in steps) for metric in metrics)
        }

    def curve(self, variant: str, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The steps (T,) at which all seeds that have begun to record the metric have it, and its values (seeds, T)."""
        if variant not in self.results:
            raise ConfigError(f"{self.folder}: " + unknown("variant", variant, self.results))
        runs = self._with(variant, metric) or self.results[variant]
        curves = [series(records, metric) for records in runs.values()]
        shortest = min(len(steps) for steps, _ in curves)
        return curves[0][0][:shortest], np.array([values[:shortest] for _, values in curves])

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
        """The table and the curves of the recipe's metrics, for notebooks."""
        head = f"<h4>{escape(self.recipe.name)}</h4><p>{escape(self.recipe.description)}</p>"
        if self.missing:
            head += f"<p>Missing: {escape('; '.join(self.missing))}.</p>"
        try:
            summary = self.summary
        except ConfigError as error:
            return f"{head}<p>{escape(str(error))}</p>"
        shown = {variant: self.results[variant] for variant in summary.rows}
        figure = curves_figure(shown, self.recipe.metrics, self.recipe.window)
        data = base64.b64encode(svg(figure, f"Curves of {self.recipe.name}").encode()).decode()
        curves = f'<img alt="Curves of {escape(self.recipe.name)}" src="data:image/svg+xml;base64,{data}"/>'
        return head + summary._repr_html_() + curves


def load_run(folder: str | Path) -> Run:
    """The run in a folder made by `mixwise run`; a run in progress or interrupted is read as far as it got."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no config.yaml; name a folder that mixwise run has made")
    recipe = load_recipe(str(folder / "config.yaml"), follow=False)
    found = read_folder(folder)
    results: Results = {}
    for run in found.runs:
        if run.records:
            results.setdefault(run.variant, {})[run.seed] = run.records
    return Run(folder, recipe, results, tuple(found.problems))
