"""Lookup of parts by name, and their construction from the values of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module, metadata, resources
from operator import attrgetter
from typing import Any

from mixwise.errors import MixwiseError, unknown
from mixwise.parts.declaration import FUNCTIONS, Declaration, declaration
from mixwise.parts.types import FAMILIES, OptionError

_AWARE = "policy: {kind: heterogeneity-aware, alternate_with: metropolis-hastings}"
_OF_THE_PAPER = {
    "ha-dsgd": f"HA-DSGD is algorithm: dsgd with {_AWARE}",
    "ha-dadam": f"HA-DAdam is algorithm: dadam with {_AWARE}",
    "ce-gme": "CE-GME, weights that are fitted to sketches, is policy: heterogeneity-aware",
    "gme": "weights that minimize the gradient mixing error are policy: heterogeneity-aware",
}
"""What the names of the paper stand for, where they are no names of parts."""

Entry = Mapping[str, str | int]  # a row of the index: where the part is, its title, its source, its columns


@cache
def _index() -> Mapping[str, Mapping[str, Entry]]:
    text = (resources.files("mixwise.parts") / "index.json").read_text("utf-8")
    index: dict[str, dict[str, Entry]] = json.loads(text)
    return index


def entries(family: str, *, outside: bool = True) -> dict[str, Entry]:
    """Return the parts of a family by name, those of other packages last; nothing is imported."""
    own = dict(_index().get(family, {}))
    return own | _entry_points(family) | own if outside else own  # a name that mixwise has stays its own


def _entry_points(family: str) -> dict[str, Entry]:
    points = [(*point.name.partition("."), point.value) for point in metadata.entry_points(group="mixwise.parts")]
    return {name: {"where": where, "title": name} for owner, _, name, where in points if owner == family}


def _entry(family: str, name: str) -> Entry | None:
    """Return the row of a part; other packages are searched only for a name that mixwise does not have."""
    return entries(family, outside=False).get(name) or _entry_points(family).get(name)


def names(family: str) -> list[str]:
    """Return the names that a recipe can use in a family, besides `package.module:Name`."""
    other = FAMILIES[family].shorthand
    return [*entries(family), *(entries(other[0]) if other else ())]


def lookup(family: str, name: str) -> Declaration:
    """Return the part called `name`; its module is imported now."""
    if ":" in name:
        where = name
    elif (entry := _entry(family, name)) is not None:
        where = str(entry["where"])
    else:
        raise OptionError(_unknown(family, name))
    found = declaration(_imported(where))
    if not found.family:
        return replace(found, family=family, name=name)
    if found.family != family:
        raise OptionError(f"{name} is declared as {found.family}; name {_one(family)} here")
    return found


def _unknown(family: str, name: str) -> str:
    """Return one line about a name that the family does not have: what has this name, or the names that there are."""
    meant = _OF_THE_PAPER.get(name.lower())
    others = [other for other in FAMILIES if other != family and name in entries(other)]
    if meant is None and others:
        meant = f"{name} is {_one(others[0])}: write {others[0]}: {name}"
    if meant is not None:
        return f"unknown {family} {name!r}; {meant}"
    return unknown(family, name, [*names(family), "package.module:Name"])


def build(family: str, value: Any, where: str = "") -> Any:
    """Return the part that a recipe's value stands for.

    Args:
        family: a key of `FAMILIES`.
        value: a name, a mapping with `kind` and options, or a part, which is returned as it is.
        where: the path of the value in the recipe, for errors.
    """
    try:
        return built(family, value)
    except OptionError as error:
        raise error.at(*where.split(".")) from None


def built(family: str, value: Any) -> Any:
    """Return the part as `build` does, with errors that have no path."""
    if not isinstance(value, str | Mapping | int | float | list | tuple | None):
        return value
    kind, options = normalized(family, value)
    try:
        return lookup(family, kind).build(options)
    except OptionError:
        raise
    except MixwiseError as error:  # a rule that the part itself checks
        raise OptionError(str(error)) from None


def normalized(family: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Return the kind and the options of a recipe's value; a scheme's name as a policy means fixed weights."""
    default, other = FAMILIES[family].default, FAMILIES[family].shorthand
    if isinstance(value, str):
        if other and default and not _entry(family, value) and _entry(other[0], value):
            return default, {other[1]: value}
        return value, {}
    if not isinstance(value, Mapping):
        raise OptionError(f"{_one(family)} is written as its name, or as {{kind: NAME, option: …}}", value=value)
    options = dict(value)
    kind = options.pop("kind", default)
    if not isinstance(kind, str):
        choices = ", ".join(names(family))
        raise OptionError(f"kind is the name of {_one(family)}; choose one of {choices}", ("kind",), kind)
    return kind, options


def _imported(where: str) -> Any:
    """Return the object at `package.module:Name`."""
    module, _, attribute = where.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:  # the module's own code may fail in any way
        raise OptionError(f"{where!r} cannot be imported: {error}; install its package, or correct the name") from None
    try:
        found = attrgetter(attribute)(found)
    except AttributeError:
        raise OptionError(f"{where!r} cannot be imported: {module} has no {attribute}; correct the name") from None
    if not isinstance(found, (type, *FUNCTIONS)):  # not os:abort, which would be called
        raise OptionError(f"{where!r} is neither a class nor a function; name one")
    return found


def _one(family: str) -> str:
    return f"{'an' if family[0] in 'aeiou' else 'a'} {family}"
