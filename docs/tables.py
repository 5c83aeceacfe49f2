"""Derives files from the declarations of parts: the index of names, and the tables in the documentation.

python docs/tables.py        write them
"""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path

import mixwise
from mixwise.parts import FAMILIES, declared

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "src" / "mixwise" / "parts" / "index.json"


def index() -> str:
    """The index of all parts of mixwise, as JSON: where each is, and what its row in a table says."""
    for module in pkgutil.walk_packages(mixwise.__path__, "mixwise."):
        if module.name != "mixwise.__main__":
            import_module(module.name)
    found: dict[str, dict[str, dict[str, str | int]]] = {family: {} for family in FAMILIES}
    for part in sorted(
        declared(), key=lambda part: (part.family, part.name != FAMILIES[part.family].default, part.name)
    ):
        if part.where.startswith("mixwise."):
            row = {"where": part.where, "title": part.title, "cite": part.cite, **part.columns}
            if found[part.family].setdefault(part.name, row) is not row:
                raise TypeError(f"{part.where}: the {part.family} {part.name!r} is declared twice; rename one")
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index(), "utf-8")
