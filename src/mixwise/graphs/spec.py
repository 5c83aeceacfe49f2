"""The one place where a string such as `torus:4x4` becomes a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from mixwise.errors import GraphError
from mixwise.graphs import families
from mixwise.graphs.files import load
from mixwise.graphs.graph import Graph

Number = type[int] | type[float]


@dataclass(frozen=True)
class _Family:
    """How to read a spec: `form` for people, with optional parts in brackets; the rest for the parser."""

    form: str
    build: Callable[..., Graph]
    options: Mapping[str, Number] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What stands before the options: ("N",), ("ROWS", "COLS") or nothing."""
        head = self.form.partition(":")[2].split(",")[0].split("[")[0]
        return tuple(head.split("x")) if head else ()

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in self.options if f"[,{name}=" not in self.form)


_FAMILIES = {
    "ring": _Family("ring:N", families.ring),
    "chain": _Family("chain:N", families.chain),
    "torus": _Family("torus:ROWSxCOLS", families.torus),
    "grid": _Family("grid:ROWSxCOLS", families.grid),
    "star": _Family("star:N", families.star),
    "complete": _Family("complete:N", families.complete),
    "hypercube": _Family("hypercube:DIMENSION", families.hypercube),
    "exponential": _Family("exponential:N", families.exponential),
    "directed-ring": _Family("directed-ring:N", families.directed_ring),
    "directed-exponential": _Family("directed-exponential:N", families.directed_exponential),
    "random-connected": _Family(
        "random-connected:N[,keep=SHARE][,seed=SEED]", families.random_connected, {"keep": float, "seed": int}
    ),
    "random-regular": _Family(
        "random-regular:N,degree=DEGREE[,seed=SEED]", families.random_regular, {"degree": int, "seed": int}
    ),
    "erdos-renyi": _Family(
        "erdos-renyi:N,probability=P[,seed=SEED]", families.erdos_renyi, {"probability": float, "seed": int}
    ),
    "random-geometric": _Family(
        "random-geometric:N,radius=R[,seed=SEED]", families.random_geometric, {"radius": float, "seed": int}
    ),
    "small-world": _Family(
        "small-world:N,neighbors=K,rewire=P[,seed=SEED]",
        families.small_world,
        {"neighbors": int, "rewire": float, "seed": int},
    ),
    "social": _Family("social", families.social_network),
    "file": _Family("file:PATH", load),
}

SPECS: Mapping[str, str] = MappingProxyType({name: family.form for name, family in _FAMILIES.items()})
"""Every family and the form of its spec, for help texts: `SPECS["torus"] == "torus:ROWSxCOLS"`."""


def parse(spec: str, seed: int = 0) -> Graph:
    """The graph that a spec describes; `seed` is for the random families, unless the spec has its own `seed=`.

    >>> parse("torus:4x4") == families.torus(4, 4)
    True
    >>> parse("random-connected:16,keep=0.3", seed=1) == parse("random-connected:16,keep=0.3,seed=1")
    True
    """
    name, _, rest = spec.strip().partition(":")
    family = _FAMILIES.get(name)
    if family is None:
        close = get_close_matches(name, SPECS, n=1)
        hint = f"; did you mean {SPECS[close[0]]}?" if close else ""
        raise GraphError(f"unknown graph {spec!r}; choose one of {', '.join(SPECS.values())}{hint}")
    if name == "file" and rest:
        return load(rest)  # its errors name the path; and a path may hold a comma
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
