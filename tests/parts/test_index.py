"""The index and the tables follow the declarations; if not, `python docs/tables.py` (or `make tables`) writes it."""

import runpy
from pathlib import Path

import pytest

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tables.py"))


def test_the_index_names_the_parts_that_the_source_declares():
    assert TABLES["INDEX"].read_text("utf-8") == TABLES["index"]()


@pytest.mark.parametrize("page", TABLES["PAGES"], ids=lambda page: page.name)
def test_the_tables_in_the_documentation_show_the_declarations(page):
    assert page.read_text("utf-8") == TABLES["with_tables"](page.read_text("utf-8"))
