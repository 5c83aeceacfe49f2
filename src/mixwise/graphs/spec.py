"""Graph specs: strings such as `torus:4x4` or `random-connected:16,keep=0.3`, derived from the families' signatures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from inspect import Parameter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from mixwise.errors import GraphError, kind_of
from mixwise.graphs.conversion import from_networkx, load
from mixwise.graphs.graph import Graph
from mixwise.parts import Declaration, entries, lookup, names

if TYPE_CHECKING:
    import networkx

GraphLike: TypeAlias = Union[Graph, str, "networkx.Graph[Any]"]
"""What `as_graph` takes: a graph, a spec such as "ring:16", or a networkx graph."""

SPECS: Mapping[str, str] = MappingProxyType(
    {name: str(entry["form"]) for name, entry in entries("graph", outside=False).items()}
)
"""Every family and the form of its spec, for help texts: `SPECS["torus"] == "torus:ROWSxCOLS"`."""


def parse(spec: str, seed: int = 0) -> Graph:
    """The graph that a spec describes; `seed` is for the random families, unless the spec has its own `seed=`.

    A family of another package is named by its module: `package.module:name:16,option=3`.

    >>> parse("torus:4x4").n
    16
    >>> parse("random-connected:16,keep=0.3", seed=1) == parse("random-connected:16,keep=0.3,seed=1")
    True
    """
    name, _, rest = spec.strip().partition(":")
    if "." in name and rest:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    elif name not in SPECS and name not in names("graph"):
        close = get_close_matches(name, SPECS, n=1)
        hint = f"did you mean {f'{close[0]}:{rest}' if rest else SPECS[close[0]]}? " if close else ""
        raise GraphError(f"unknown graph {spec!r}; {hint}choose one of {', '.join(SPECS.values())}")
    if name == "file" and rest:
        return load(rest)  # its errors name the path; and a path may contain a comma
    family = lookup("graph", name)
    sizes, options = _arguments(family)
    try:
        head, *tail = rest.split(",")
        texts = head.split("x") if head else []
        if len(texts) != len(sizes):
            expected = "x".join(map(str.upper, sizes)) or "nothing"
            raise GraphError(f"expected {expected} after the name, got {head!r}")
        values = {size: _number(family, size, size.upper(), text) for size, text in zip(sizes, texts, strict=True)}
        values |= {"seed": seed} if "seed" in options else {}
        graph: Graph = family.target(**values | _options(family, options, tail))
        return graph
    except GraphError as error:
        raise GraphError(f"graph {spec!r}: {error}; the form is {form(family)}") from None


def sized(spec: str, nodes: int) -> str:
    """The spec of a graph of the same family with this many nodes; it may name the family alone.

    >>> sized("ring:16", 1000), sized("torus", 1000), sized("small-world:16,rewire=0.2", 1000)
    ('ring:1000', 'torus:25x40', 'small-world:1000,rewire=0.2')
    """
    head, *options = spec.strip().split(",")
    name = head.partition(":")[0]
    if name == "file" or name not in SPECS:
        raise GraphError(f"nodes = {nodes} with graph {spec!r}: only families come in any size; leave nodes out")
    sizes = _arguments(lookup("graph", name))[0]
    if sizes == ["n"]:
        size = str(nodes)
    elif sizes == ["rows", "cols"]:
        rows = next(r for r in range(math.isqrt(nodes), 0, -1) if nodes % r == 0)
        if nodes > 16 * rows**2:
            near = math.isqrt(nodes) ** 2
            raise GraphError(f"nodes = {nodes} is {rows} × {nodes // rows}, too thin for a {name}; use nodes={near}")
        size = f"{rows}x{nodes // rows}"
    elif sizes == ["dimension"] and nodes & (nodes - 1) == 0:
        size = str(nodes.bit_length() - 1)
    else:
        rule = "use a power of two" if sizes else "it has one size; leave nodes out"
        raise GraphError(f"nodes = {nodes} with graph {spec!r}: {rule}")
    return ",".join([f"{name}:{size}", *options])


def as_graph(value: Any) -> Graph:
    """The graph that is meant by a graph, a spec such as "ring:16", or a networkx graph."""
    if isinstance(value, Graph):
        return value
    if isinstance(value, str):
        return parse(value)
    if type(value).__module__.startswith("networkx."):
        return from_networkx(value)
    raise GraphError(
        f"graph is {kind_of(value)}; pass a mixwise.Graph such as mixwise.graphs.ring(16), a spec such as 'ring:16', "
        f"or a networkx graph; of an adjacency matrix, mixwise.graphs.from_adjacency(A)"
    )


def form(family: Declaration) -> str:
    """The form of a family's specs, with optional parts in brackets: `random-connected:N[,keep=KEEP][,seed=SEED]`."""
    sizes, options = _arguments(family)
    text = family.name + ":" * bool(sizes) + "x".join(map(str.upper, sizes))
    for option in options:
        part = f",{option}={option.upper()}"
        text += part if family.defaults[option] is Parameter.empty else f"[{part}]"
    return text


def _arguments(family: Declaration) -> tuple[list[str], list[str]]:
    """A family's sizes, which follow the colon, and its options: `n` is the only size, or else all arguments are."""
    arguments = list(family.defaults)
    return (["n"], [name for name in arguments if name != "n"]) if "n" in arguments else (arguments, [])


def _options(family: Declaration, options: list[str], texts: list[str]) -> dict[str, float]:
    """The values of `name=value` texts, each option at most once and no required one missing."""
    values: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in options:
            raise GraphError(f"unknown option {text!r}; the options are {', '.join(options) or 'none'}")
        if not equals:
            raise GraphError(f"the option {name} has no value; write {name}=…")
        if name in values:
            raise GraphError(f"the option {name} is given twice; give it once")
        values[name] = _number(family, name, name, value)
    for name in options:
        if family.defaults[name] is Parameter.empty and name not in values:
            raise GraphError(f"{name} is missing; add {name}=…")
    return values


def _number(family: Declaration, argument: str, name: str, text: str) -> float:
    """`text` as a number of the argument's type."""
    whole = family.options[argument].hint is int
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise GraphError(f"{name} = {text!r} is not a {'whole ' * whole}number") from None
