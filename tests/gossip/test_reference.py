"""docs/gossip.md lists every argument of Gossip with its default, and every public method and attribute."""

import inspect
import re
from pathlib import Path

import pytest

import mixwise as mw

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gossip.md").read_text("utf-8")


def rows(head):
    """The cells of all tables with such a head."""
    tables = re.findall(rf"^\| {head} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" |")] for table in tables for line in table.splitlines()]


def test_every_argument_is_listed_with_its_default():
    listed = {name.strip("`"): default.strip("`") for name, default, _ in rows("argument")}
    parameters = inspect.signature(mw.Gossip).parameters.items()
    expected = {
        name: "required" if parameter.default is parameter.empty else repr(parameter.default).replace("'", '"')
        for name, parameter in parameters
    }
    assert listed == expected


def test_every_public_method_and_attribute_is_listed():
    listed = {name for cell, *_ in rows("name") for name in re.findall(r"`(\w+)", cell)}
    public = {name for name, value in vars(mw.Gossip).items() if not name.startswith("_")}
    assert listed == public | {"model", "optimizer"}


def test_arguments_of_methods_exist():
    for cell, *_ in rows("name"):
        for method, given in re.findall(r"`(\w+)\((.*?)\)`", cell):
            assert set(re.findall(r"\w+", given)) <= set(inspect.signature(getattr(mw.Gossip, method)).parameters)


@pytest.mark.parametrize("page", ["your-own-loop", "from-ddp", "with-your-trainer", "several-machines", "api/gossip"])
def test_the_guides_link_to_it(page):
    assert "gossip.md)" in (DOCS / f"{page}.md").read_text("utf-8").replace("api/gossip.md)", "")
