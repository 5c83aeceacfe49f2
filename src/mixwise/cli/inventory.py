"""Commands that tell what is here: recipes and algorithms to choose from, and whether the installation works."""

from __future__ import annotations

import typer
from rich.table import Table

from mixwise.experiments import load_recipe, recipe_names
from mixwise.parts import entries
from mixwise.terminal import fail, out

_COLUMNS = {  # what the index says about the parts of a family, and the headings
    "algorithm": {
        "step": "step",
        "mixes": "mixes",
        "rounds": "rounds",
        "sends": "sends per node",
        "condition": "condition on W",
        "cite": "reference",
    },
    "policy": {"does": "what it does", "cite": "reference"},
}


def recipes() -> None:
    """List the recipes that come with mixwise, and the algorithms and policies that a recipe can name."""
    table = Table(box=None, pad_edge=False)
    for column in ("recipe", "what it shows", "variants", "seeds"):
        table.add_column(column)
    for name in recipe_names():
        recipe = load_recipe(name)
        listed = ", ".join(recipe.variants)
        if recipe.further:
            listed += f"; if named: {', '.join(recipe.further)}"
        table.add_row(name, recipe.description, listed, str(len(recipe.seeds)))
    out.print(table)
    for family, columns in _COLUMNS.items():
        table = Table(box=None, pad_edge=False)
        for column in (family, *columns.values()):
            table.add_column(column)
        for name, entry in entries(family).items():
            table.add_row(name, *(str(entry.get(column, "")) for column in columns))
        out.print()
        out.print(table)


def doctor() -> None:
    """Look at what is here and whether it works: versions, threads, back ends, data sets, a self-test of some seconds.

    Example: mixwise doctor
    """
    from mixwise.doctor import findings  # other commands start faster without it

    broken, topic = 0, None
    for finding in findings():
        mark = {None: "", True: "ok: ", False: "FAILED: "}[finding.ok]
        label = "" if finding.topic == topic else finding.topic
        topic = finding.topic
        out.print(f"{label:<14}{mark}{finding.text}")
        if finding.ok is False:
            broken += 1
            out.print(f"{'':<14}remedy: {finding.remedy}")
    if broken:
        raise typer.Exit(fail(f"{broken} of the above {'is' if broken == 1 else 'are'} broken", 1))
    out.print("All is well.")
