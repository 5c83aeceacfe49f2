"""The one place where a string such as `torus:4x4` becomes a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter
from types import MappingProxyType

from mixwise.errors import GraphError
from mixwise.graphs.files import load
from mixwise.graphs.graph import Graph
from mixwise.parts import entries, lookup, names

Number = type[int] | type[float]


@dataclass(frozen=True)
class _Family:
    """How to read a spec: `form` for people, the rest for the parser."""

    form: str
    build: Callable[..., Graph]
    sizes: tuple[str, ...]  # what stands before the options: ("N",), ("ROWS", "COLS") or nothing
    options: Mapping[str, Number]
    required: tuple[str, ...]


def _family(name: str) -> _Family:
    """The family called `name`; one that was declared without a form takes its first argument as the size."""
    found = lookup("graph", name)
    arguments = list(found.defaults)
    form = str(found.columns.get("form", ":".join([name, *arguments[:1]])))
    head = form.removeprefix(name).removeprefix(":").split(",")[0].split("[")[0]
    sizes = tuple(head.split("x")) if head else ()
    options = {option: found.options[option].hint for option in arguments[len(sizes) :]}
    required = tuple(option for option in options if found.defaults[option] is Parameter.empty)
    return _Family(form, found.target, sizes, options, required)


SPECS: Mapping[str, str] = MappingProxyType(
    {name: str(entry["form"]) for name, entry in entries("graph", outside=False).items()}
)
"""Every family and the form of its spec, for help texts: `SPECS["torus"] == "torus:ROWSxCOLS"`."""


def parse(spec: str, seed: int = 0) -> Graph:
    """The graph that a spec describes; `seed` is for the random families, unless the spec has its own `seed=`.

    >>> parse("torus:4x4").n
    16
    >>> parse("random-connected:16,keep=0.3", seed=1) == parse("random-connected:16,keep=0.3,seed=1")
    True
    """
    name, _, rest = spec.strip().partition(":")
    if "." in name and rest:  # a function of another package: package.module:name:sizes,options
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    elif name not in SPECS and name not in names("graph"):
        close = get_close_matches(name, SPECS, n=1)
        hint = f"did you mean {SPECS[close[0]]}? " if close else ""
        raise GraphError(f"unknown graph {spec!r}; {hint}choose one of {', '.join(SPECS.values())}")
    if name == "file" and rest:
        return load(rest)  # its errors name the path; and a path may hold a comma
    family = _family(name)
    try:
        head, *tail = rest.split(",")
        sizes = _sizes(family, head)
        options = _options(family, tail)
        if "seed" in family.options:
            options.setdefault("seed", seed)
        return family.build(*sizes, **options)
    except GraphError as error:
        raise GraphError(f"graph {spec!r}: {error}; the form is {family.form}") from None


def _sizes(family: _Family, head: str) -> list[int]:
    parts = head.split("x") if head else []
    if len(parts) != len(family.sizes):
        expected = "x".join(family.sizes) or "nothing"
        raise GraphError(f"expected {expected} after the name, got {head!r}")
    return [int(_number(name, text, int)) for name, text in zip(family.sizes, parts, strict=True)]


def _options(family: _Family, texts: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in family.options:
            raise GraphError(f"unknown option {text!r}; the options are {', '.join(family.options) or 'none'}")
        if not equals:
            raise GraphError(f"the option {name} has no value; write {name}=…")
        if name in values:
            raise GraphError(f"the option {name} is given twice; give it once")
        values[name] = _number(name, value, family.options[name])
    for name in family.required:
        if name not in values:
            raise GraphError(f"{name} is missing; add {name}=…")
    return values


def _number(name: str, text: str, kind: Number) -> float:
    try:
        return kind(text)
    except ValueError:
        raise GraphError(f"{name} = {text!r} is not a {'whole ' if kind is int else ''}number") from None
