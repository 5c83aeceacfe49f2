"""Experiments: a recipe becomes runs, and runs become a folder."""

from typing import TYPE_CHECKING

from mixwise.experiments.config import Recipe, RunConfig
from mixwise.experiments.recipe import Experiment, load_recipe, plan_experiment, recipe_names
from mixwise.lazy import lazy_names

if TYPE_CHECKING:
    from mixwise.experiments.run_folder import Run, load_run
    from mixwise.experiments.runner import run_experiment

__all__ = [
    "Experiment",
    "Recipe",
    "Run",
    "RunConfig",
    "load_recipe",
    "load_run",
    "plan_experiment",
    "recipe_names",
    "run_experiment",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Run": "mixwise.experiments.run_folder",
        "load_run": "mixwise.experiments.run_folder",
        "run_experiment": "mixwise.experiments.runner",
    },
)
