"""A run folder read back into Python, for notebooks: its recipe, its records and its table."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError, unknown
from mixwise.experiments.config import Recipe
from mixwise.experiments.recipe import load_recipe
from mixwise.graphs.drawing import svg
from mixwise.report.figures import curves_figure
from mixwise.report.folder import RunFolder, read_folder
from mixwise.report.records import Steps, holding, series
from mixwise.report.summary import Summary, summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Run:
    """The results of `mixwise run` or `mixwise.compare`, finished or not; in a notebook, a table and curves.

    Attributes:
        folder: the run folder.
        recipe: the experiment as it was run.
        found: the contents of the folder.
    """

    folder: Path
    recipe: Recipe
    found: RunFolder

    @cached_property
    def results(self) -> dict[str, dict[int, Steps]]:
        """The records, by variant and seed; only of runs that have any."""
        results: dict[str, dict[int, Steps]] = {}
        for run in self.found.runs:
            if run.records:
                results.setdefault(run.variant, {})[run.seed] = run.records
        return results

    @property
    def missing(self) -> tuple[str, ...]:
        """A list of what is missing, in words; empty if the run is finished."""
        return tuple(self.found.problems)

    @cached_property
    def summary(self) -> Summary:
        """A table for each topology; runs in progress are compared at a step that all of them have reached."""
        summary = summarize(self.found)
        if not summary.steps and not any(row.diverged for row in summary.rows.values()):
            raise ConfigError(f"{self.folder} holds no run with {', '.join(self.recipe.metrics)} yet; let it continue")
        return summary

    def curve(self, variant: str, metric: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The steps (T,) at which all seeds that have begun to record the metric have it, and its values (seeds, T).

        Seeds that have diverged are left out, unless all have.
        """
        if variant not in self.results:
            raise ConfigError(f"{self.folder}: " + unknown("variant", variant, self.results))
        whole = [run.records for run in self.found.averaged(variant) if run.records]
        runs = whole or list(self.results[variant].values())
        begun = [records for records in runs if holding(records, metric)]
        curves = [series(records, metric) for records in begun or runs]
        shortest = min(len(steps) for steps, _ in curves)
        return curves[0][0][:shortest], np.array([values[:shortest] for _, values in curves])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every record with its variant and seed."""
        for variant, runs in self.results.items():
            for seed, steps in runs.items():
                for values in steps:
                    yield {"variant": variant, "seed": seed, **values}

    def frame(self) -> Any:
        """Every record with its variant and seed, as a pandas frame."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigError("frame() needs pandas, which is not installed; pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def plot(self) -> Figure:
        """The curves of the table's metrics as a matplotlib figure, which a notebook shows."""
        return curves_figure(self.found)

    def __str__(self) -> str:
        """The table, and the paired differences."""
        return str(self.summary)

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
        data = base64.b64encode(svg(curves_figure(self.found), f"Curves of {self.recipe.name}").encode()).decode()
        curves = f'<img alt="Curves of {escape(self.recipe.name)}" src="data:image/svg+xml;base64,{data}"/>'
        return head + summary._repr_html_() + curves


def load_run(folder: str | Path) -> Run:
    """The run in a folder made by `mixwise run`; a run in progress or interrupted is read as far as it got."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no config.yaml; name a folder that mixwise run has made")
    recipe = load_recipe(str(folder / "config.yaml"), follow=False)
    return Run(folder, recipe, read_folder(folder))
