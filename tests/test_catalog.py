"""Every algorithm is declared with its origin, and used by the fixed benchmark."""

import inspect
import re

import pytest

from every_algorithm import algorithm
from mixwise import algorithms
from mixwise.experiments import load_recipe
from mixwise.experiments.recipe import plan_experiment
from mixwise.parts import entries


@pytest.mark.parametrize("name", list(entries("algorithm")))
def test_the_source_cites_what_the_declaration_cites(name):
    """A method has one origin."""
    work = re.compile(r"\w+ (?:et al\.|and \w+) \d{4}")
    kind = type(algorithm(name))
    cited = set(work.findall(f"{inspect.getmodule(kind).__doc__} {kind.__doc__}"))
    assert cited <= set(work.findall(entries("algorithm")[name]["cite"]))


def test_every_algorithm_class_can_be_named_in_cifar10_small():
    """Each public algorithm is built by at least one variant of the fixed benchmark."""
    recipe = load_recipe("cifar10-small")
    names = ",".join([*recipe.variants, *recipe.further])
    runs = plan_experiment(recipe, [f"variants={names}", "topology=ring"]).runs
    built = {type(config.part("algorithm")) for config in runs.values()}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    assert built == {part for part in public if issubclass(part, algorithms.Algorithm)} - {algorithms.Algorithm}
