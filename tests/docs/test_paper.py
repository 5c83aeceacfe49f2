"""docs/paper.md, the map of the paper: it has every item, and the files, names and tests that it names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import mixwise
from mixwise import algorithms, graphs, mixing, models, policies, sketch
from mixwise.data import partition

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| paper |", "|---"))
]
ITEMS = [
    *(f"Algorithm {number}" for number in range(1, 5)),
    *(f"Remark {number}" for number in (1, 2)),
    *(f"Example {number}" for number in (1, 2, 3)),
    *(f"Proposition {number}" for number in range(1, 6)),
    *(f"Table {number}" for number in range(1, 5)),
    "Theorem 1, non-convex",
    "Theorem 1, convex",
    "lemma on double mixing",
    "consensus recursion",
    "Figure 1",
    "Appendix C: four nodes",
    "Appendix C: ring",
]


@cache
def names_of_tests():
    """Return the names of all test functions."""
    trees = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("test_*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("item", ITEMS)
def test_the_map_has_every_item_of_the_paper(item):
    assert any(row[0].startswith(item) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_files_tests_and_names_of_the_map_exist(row):
    modules = (mixwise, algorithms, graphs, mixing, models, policies, sketch, partition)
    for code in re.findall(r"`([^`]+)`", " ".join(row)):
        if code.startswith("test_"):
            assert code in names_of_tests()
        elif code.endswith(".py"):
            assert (ROOT / "src" / "mixwise" / code).is_file()
        elif not re.match(r"[a-z0-9-]+$|mixwise", code) or "_" in code:
            name = code.partition("(")[0]
            assert any(hasattr(module, name) for module in modules), name


@pytest.mark.parametrize("page", ["method.md", "differences-from-paper.md", "index.md"])
def test_pages_about_the_paper_lead_to_the_map(page):
    assert "paper.md" in (ROOT / "docs" / page).read_text("utf-8")
