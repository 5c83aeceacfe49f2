"""`mixwise recipes`: list the recipes, or the variants of one, and the names that a recipe can use."""

from __future__ import annotations

from typing import Annotated

import typer

from mixwise.cli.completion import offer_recipes
from mixwise.terminal import columns, out


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show its variants.", autocompletion=offer_recipes)] = None,
) -> None:
    """List recipes, algorithms, graphs and weighting schemes.

    Example: mixwise recipes digits
    """
    from mixwise.algorithms.catalog import CATALOG
    from mixwise.experiments import load_recipe, recipe_names
    from mixwise.experiments.build_policy import SCHEMES
    from mixwise.graphs import SPECS

    if name is not None:
        recipe = load_recipe(name)
        out.print(f"{recipe.name}: {recipe.description}")
        out.print(f"variants: {', '.join(recipe.variants)}")
        if recipe.further:
            out.print(f"on request (variants=NAME,…): {', '.join(recipe.further)}")
        return
    known = {name: load_recipe(name) for name in recipe_names()}
    out.print(columns(("recipe", "description"), [(name, recipe.description) for name, recipe in known.items()]))
    out.print("\nmixwise recipes RECIPE lists the variants of a recipe.\n")
    rows = [(e.name, f"{e.step}\nW: {e.condition}; sends {e.sends} per node; {e.reference}") for e in CATALOG]
    out.print(columns(("algorithm", "step, condition on W, cost, reference"), rows))
    out.print(f"\ngraphs: {', '.join(SPECS.values())}\n\nweighting schemes: {', '.join(SCHEMES)}")
