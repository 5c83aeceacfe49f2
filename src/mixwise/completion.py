"""What the shell offers when somebody presses the tab key."""

from __future__ import annotations

from typing import Any

import typer

from mixwise.errors import MixwiseError
from mixwise.experiments import RunConfig, load_recipe, recipe_names
from mixwise.parts import entries

Offer = tuple[str, str]  # a word, and what it is


def offer_recipes(incomplete: str) -> list[Offer]:
    """The recipes; files are offered by the shell itself."""
    return [(name, load_recipe(name).description) for name in recipe_names() if name.startswith(incomplete)]


def offer_overrides(context: typer.Context, incomplete: str) -> list[Offer]:
    """Keys that a recipe may be changed with; the variants of the recipe that was named."""
    keys = dict.fromkeys(RunConfig.model_fields, "") | {"seeds": "such as 0-4", "variants": "", "topology": ""}
    offers = [(f"{key}=", words) for key, words in keys.items()]
    recipe = _recipe(context.params.get("recipe"))
    if recipe is not None and incomplete.startswith("variants="):
        offers = [(f"variants={name}", "") for name in (*recipe.variants, *recipe.further)]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def offer_graphs(incomplete: str) -> list[Offer]:
    """Families of graphs."""
    forms = [str(entry.get("form", name)) for name, entry in entries("graph").items()]
    starts = {form.partition(":")[0] + (":" if ":" in form else ""): form for form in forms}
    return [(start, form) for start, form in starts.items() if start.startswith(incomplete)]


def offer_schemes(incomplete: str) -> list[str]:
    """Schemes of weights."""
    return [name for name in (*entries("scheme"), "gme") if name.startswith(incomplete)]


def _recipe(name: Any) -> Any:
    try:
        return None if name is None else load_recipe(str(name))
    except MixwiseError:
        return None
