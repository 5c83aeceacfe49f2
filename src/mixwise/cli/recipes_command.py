"""`mixwise recipes`: the recipes and the names that they can use; shell completion offers the same names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import typer

from mixwise.errors import MixwiseError
from mixwise.parts import entries
from mixwise.terminal import columns, out

Offer = tuple[str, str]  # a word, and its description


# --- shell completion ---
def offer_recipes(incomplete: str) -> list[Offer]:
    """The recipes; files are offered by the shell itself."""
    from mixwise.experiments import load_recipe, recipe_names

    return [(name, load_recipe(name).description) for name in recipe_names() if name.startswith(incomplete)]


def offer_overrides(context: typer.Context, incomplete: str) -> list[Offer]:
    """The keys of a recipe, and the variants of the recipe on the command line."""
    from mixwise.experiments import RunConfig, load_recipe

    keys = dict.fromkeys(RunConfig.model_fields, "") | {"seeds": "such as 0-4", "variants": "", "topology": ""}
    offers = [(f"{key}=", words) for key, words in keys.items()]
    if incomplete.startswith("variants="):
        with suppress(MixwiseError):  # there is no such recipe
            recipe = load_recipe(str(context.params.get("recipe")))
            offers = [(f"variants={name}", "") for name in (*recipe.variants, *recipe.further)]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def offer_graphs(incomplete: str) -> list[Offer]:
    """The families of graphs."""
    starts = {form.partition(":")[0] + (":" if ":" in form else ""): form for form in _graph_forms()}
    return [(start, form) for start, form in starts.items() if start.startswith(incomplete)]


def offer_schemes(incomplete: str) -> list[str]:
    """The weighting schemes."""
    return [name for name in (*entries("scheme"), "gme") if name.startswith(incomplete)]


# --- the command ---


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
    out.print(f"\ngraphs: {', '.join(_graph_forms())}\n\nweighting schemes: {', '.join(entries('scheme'))}")


def _algorithm(entry: Mapping[str, str | int]) -> str:
    if "step" not in entry:  # of another package
        return str(entry["title"])
    return f"{entry['step']}\nW: {entry['condition']}; sends {entry['sends']} per node; {entry['cite']}"


def _graph_forms() -> list[str]:
    return [str(entry.get("form", name)) for name, entry in entries("graph").items()]
