"""What is derived from the declarations is current."""

import runpy
from pathlib import Path

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tables.py"))


def test_the_index_names_the_parts_that_the_source_declares():
    """If this fails, run `python docs/tables.py`."""
    assert TABLES["INDEX"].read_text("utf-8") == TABLES["index"]()
