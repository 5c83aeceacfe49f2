"""Derives files from the declarations of parts: the index of names, and the tables in the documentation.

python docs/tables.py        write them
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import mixwise
from mixwise.experiments.classification import DataSection, ModelSection, classification
from mixwise.experiments.config import LinkTimes, Optimizer, Recipe, RunConfig, Schedule
from mixwise.graphs.spec import form
from mixwise.network import Faults
from mixwise.parts import FAMILIES, Bound, Declaration, Family, declaration, declared
from mixwise.parts.declaration import family_of

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "src" / "mixwise" / "parts" / "index.json"
PAGES = tuple(ROOT / "docs" / page for page in ("algorithms.md", "recipe-reference.md", "faults.md"))


@cache
def all_parts() -> list[Declaration]:
    """The parts of mixwise, sorted by family and name, the default of each family first."""
    for module in pkgutil.walk_packages(mixwise.__path__, "mixwise."):
        if module.name != "mixwise.__main__":
            import_module(module.name)
    own = [part for part in declared() if part.where.startswith("mixwise.")]
    return sorted(own, key=lambda part: (part.family, part.name != FAMILIES[part.family].default, part.name))


def parts(family: str) -> list[Declaration]:
    """The parts of a family, the default first."""
    return [part for part in all_parts() if part.family == family]


def index() -> str:
    """The index of all parts of mixwise, as JSON: where each is, and what its row in a table says."""
    found: dict[str, dict[str, dict[str, str | int]]] = {family: {} for family in FAMILIES}
    for part in all_parts():
        row = {"where": part.where, "title": part.title, "cite": part.cite, **cells(part)}
        row |= {"form": form(part)} if part.family == "graph" else {}
        if found[part.family].setdefault(part.name, row) is not row:
            raise TypeError(f"{part.where}: the {part.family} {part.name!r} is declared twice; rename one")
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


# --- tables between <!-- table: NAME --> and <!-- end of table --> ---
def with_tables(text: str) -> str:
    """A page with its tables made again."""
    tables = {
        "algorithms": lambda: _table(
            ("`algorithm`", "step", "mixes", "rounds", "sends per node and mixing", "condition on W", "reference"),
            [(f"`{part.name}`", *map(cells(part).get, COLUMNS), part.cite) for part in parts("algorithm")],
        ),
        "options of algorithms": lambda: _table(
            ("kind", "options"),
            [(f"`{part.name}`", _options(part)) for part in parts("algorithm") if part.options],
        ),
        "policies": lambda: _table(
            ("`kind`", "what it does", "options"),
            [(f"`{part.name}`", part.columns["does"], _options(part)) for part in parts("policy")],
        ),
        "graphs": lambda: _table(("`graph`", "family"), [(f"`{form(part)}`", part.title) for part in parts("graph")]),
        "other parts": lambda: _table(
            ("where", "`kind`", "options"),
            [(place, f"`{part.name}`", _options(part)) for place, family in PLACES for part in parts(family)],
        ),
        **{f"keys of {name}": partial(_keys, section) for name, section in SECTIONS.items()},
        "keys of faults": lambda: _arguments(Faults),
        "keys of classification": lambda: _arguments(
            classification, leave_out=("nodes, seed, run", "data, model, partition")
        ),
    }
    return re.sub(
        r"(<!-- table: (.+?) -->\n\n).*?(\n<!-- end of table -->)",
        lambda found: found[1] + tables[found[2]]() + found[3],
        text,
        flags=re.DOTALL,
    )


SECTIONS: dict[str, type[BaseModel]] = {
    "recipe": Recipe,
    "run": RunConfig,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "links": LinkTimes,
    "data": DataSection,
    "model": ModelSection,
}
COLUMNS = ("step", "mixes", "rounds", "sends", "condition")
AS_DSGD = {"mixes": "X′", "rounds": 1, "sends": "deg · d", "condition": "doubly stochastic"}
PLACES = (
    ("`task`", "task"),
    ("`task.data`", "data"),
    ("`task.partition`", "partition"),
    ("`task.model`", "model"),
    ("`weights`", "scheme"),
    ("`sketch`", "sketch"),
    ("`compressor`", "compressor"),
)


def cells(part: Declaration) -> dict[str, str | int]:
    """The further cells of a part's row; an algorithm is like D-SGD where its declaration says nothing else."""
    usual = AS_DSGD if part.family == "algorithm" else {}
    found = {**usual, **part.columns}
    return {name: found[name] for name in dict.fromkeys((*COLUMNS, *found)) if name in found}


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"


def _keys(section: type[BaseModel]) -> str:
    """The keys of a section of a recipe, each with its default and the docstring of its attribute."""
    rows = []
    for name, field in section.model_fields.items():
        words = [
            f"`{word}`" for kind in _flat(field.annotation) if get_origin(kind) is Literal for word in get_args(kind)
        ]
        choices = f" ({', '.join(words)})" if words else ""
        rows.append((f"`{name}`", _shown(field), str(field.description) + choices))
    return _table(("key", "default", "meaning"), rows)


def _shown(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if isinstance(default, BaseModel) or default in (None, [], {}, ""):
        return "–"
    return f"{default:g}" if isinstance(default, float) else json.dumps(default).strip('"')


def _arguments(described: Any, leave_out: Sequence[str] = ()) -> str:
    """The options of a part with the descriptions of its docstring."""
    text = re.split(r"^ *Args:\n", inspect.getdoc(described) or "", flags=re.MULTILINE)[1]
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", text, flags=re.MULTILINE)
    rows = [(name, " ".join(words.split())) for name, words in entries if name not in leave_out]
    return _table(
        ("key", "meaning"), [(", ".join(f"`{n}`" for n in name.split(", ")), meaning) for name, meaning in rows]
    )


def _options(part: Declaration) -> str:
    """The options with their types and defaults, and a note."""
    listed = ", ".join(_option(name, option.hint, part.defaults[name]) for name, option in part.options.items())
    return ". ".join(filter(None, (listed, str(part.columns.get("note", ""))))) or "–"


def _option(name: str, hint: Any, default: Any) -> str:
    kinds = _flat(hint)
    words = next((list(get_args(kind)) for kind in kinds if get_origin(kind) is Literal), [])
    families = [kind.name for kind in kinds if isinstance(kind, Family)]
    if families:
        several = bool({tuple, list, Sequence}.intersection(map(get_origin, kinds)))
        one = "a list of policies" if several else f"a {families[0]}".replace("a a", "an a")
        usual = declaration(default.part.target if isinstance(default, Bound) else type(default)).name
        known = default not in (None, Parameter.empty)
        return f"`{name}`: {one}" + (f", by default `{usual}`" if known else "")
    if words and isinstance(default, str):
        others = ", ".join(f"`{word}`" for word in words if word != default)
        return f"`{name}`: `{default}` (or {others})"
    if words:
        return f"`{name}`: " + " or ".join(f"`{word}`" for word in words)
    if default is None or default is Parameter.empty:
        return f"`{name}`"
    shown = (
        str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else default
    )
    return f"`{name}` {shown}"


def _flat(hint: Any) -> list[Any]:
    """A type with all that it is made of, families of parts among them."""
    family = family_of(hint)
    inside = (
        [each for argument in get_args(hint) for each in _flat(argument)] if get_origin(hint) is not Literal else []
    )
    return [hint, *([FAMILIES[family]] if family else []), *inside]


if __name__ == "__main__":
    INDEX.write_text(index(), "utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
