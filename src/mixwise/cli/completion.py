"""The words that shell completion offers."""

from __future__ import annotations

from contextlib import suppress

import typer

from mixwise.errors import MixwiseError
from mixwise.parts import entries

Offer = tuple[str, str]  # a word, and its description


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
    forms = [str(entry.get("form", name)) for name, entry in entries("graph").items()]
    starts = {form.partition(":")[0] + (":" if ":" in form else ""): form for form in forms}
    return [(start, form) for start, form in starts.items() if start.startswith(incomplete)]


def offer_schemes(incomplete: str) -> list[str]:
    """The weighting schemes."""
    return [name for name in (*entries("scheme"), "gme") if name.startswith(incomplete)]
