"""`mixwise recipes`: the recipes and the names that they can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from mixwise.cli.completion import offer_recipes
from mixwise.parts import entries
from mixwise.terminal import columns, out


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe.", autocompletion=offer_recipes)] = None,
) -> None:
    """List the recipes and the names that a recipe can use.

    These are the algorithms, policies, graphs and weighting schemes. With a name, print that recipe, to start your own
    from.

    Example: mixwise recipes digits
    """
    from mixwise.experiments import load_recipe, recipe_names
    from mixwise.experiments.recipe import recipe_source

    if name is not None:
        out.print(recipe_source(name), end="")
        return
    known = {name: load_recipe(name) for name in recipe_names()}
    out.print(columns(("recipe", "description"), [(name, recipe.description) for name, recipe in known.items()]))
    out.print("\nmixwise recipes RECIPE prints a recipe, to start your own from.\n")
    rows = [(name, _algorithm(entry)) for name, entry in entries("algorithm").items()]
    out.print(columns(("algorithm", "step, condition on W, cost, reference"), rows))
    out.print()
    rows = [(name, str(entry.get("does", entry["title"]))) for name, entry in entries("policy").items()]
    out.print(columns(("policy", "description"), rows))
    graphs = [str(entry.get("form", name)) for name, entry in entries("graph").items()]
    out.print(f"\ngraphs: {', '.join(graphs)}\n\nweighting schemes: {', '.join(entries('scheme'))}")


def _algorithm(entry: Mapping[str, str | int]) -> str:
    if "step" not in entry:  # of another package
        return str(entry["title"])
    return f"{entry['step']}\nW: {entry['condition']}; sends {entry['sends']} per node; {entry['cite']}"
