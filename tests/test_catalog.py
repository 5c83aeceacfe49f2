"""The table of algorithms is complete, and the docs have it."""

import inspect
import re
from pathlib import Path

import pytest

from every_algorithm import algorithm
from mixwise import algorithms
from mixwise.algorithms.catalog import CATALOG
from mixwise.experiments import load_recipe
from mixwise.experiments.algorithm_config import ALGORITHM_KINDS
from mixwise.experiments.build_algorithm import build_algorithm
from mixwise.experiments.recipe import plan_experiment

DOCS = Path(__file__).parent.parent / "docs" / "algorithms.md"


def test_every_algorithm_of_a_recipe_is_in_the_table_once():
    assert sorted(entry.name for entry in CATALOG) == sorted(ALGORITHM_KINDS)


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_the_docs_show_what_the_table_says(entry):
    line = next(line for line in DOCS.read_text("utf-8").splitlines() if line.startswith(f"| `{entry.name}` | "))
    assert line == "| " + " | ".join([f"`{entry.name}`", *map(str, entry[1:])]) + " |"


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_the_source_cites_what_the_table_cites(entry):
    """The module of an algorithm names no other origin than the table."""
    work = re.compile(r"\w+ (?:et al\.|and \w+) \d{4}")
    cited = set(work.findall(inspect.getmodule(type(algorithm(entry.name))).__doc__))
    assert cited <= set(work.findall(entry.reference))


def test_every_algorithm_class_can_be_named_in_cifar10_small():
    """Each public algorithm is built by at least one variant of the fixed benchmark."""
    recipe = load_recipe("cifar10-small")
    names = ",".join([*recipe.variants, *recipe.further])
    runs = plan_experiment(recipe, [f"variants={names}", "topology=ring"]).runs
    built = {type(build_algorithm(config.algorithm)) for config in runs.values()}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    assert built == {part for part in public if issubclass(part, algorithms.Algorithm)} - {algorithms.Algorithm}
