"""Graph specs: strings such as `torus:4x4` or `random-connected:16,keep=0.3`, derived from the families' signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from types import MappingProxyType

from mixwise.errors import GraphError
from mixwise.graphs import families
from mixwise.graphs.files import load
from mixwise.graphs.graph import Graph

_NAMED_ALIKE = (
    families.ring, families.chain, families.torus, families.grid, families.star, families.complete, families.hypercube,
    families.exponential, families.directed_ring, families.directed_exponential, families.random_connected,
    families.random_regular, families.erdos_renyi, families.random_geometric, families.small_world,
)  # fmt: skip
_FAMILIES: Mapping[str, Callable[..., Graph]] = {
    **{family.__name__.replace("_", "-"): family for family in _NAMED_ALIKE},
    "social": families.social_network,
    "file": load,
}


def parse(spec: str, seed: int = 0) -> Graph:
    """The graph that a spec describes; `seed` is for the random families, unless the spec has its own `seed=`.

    >>> parse("torus:4x4") == families.torus(4, 4)
    True
    >>> parse("random-connected:16,keep=0.3", seed=1) == parse("random-connected:16,keep=0.3,seed=1")
    True
    """
    name, _, rest = spec.strip().partition(":")
    if name not in _FAMILIES:
        close = get_close_matches(name, SPECS, n=1)
        hint = f"; did you mean {SPECS[close[0]]}?" if close else ""
        raise GraphError(f"unknown graph {spec!r}; choose one of {', '.join(SPECS.values())}{hint}")
    if name == "file" and rest:
        return load(rest)  # its errors name the path; and a path may contain a comma
    family = _FAMILIES[name]
    sizes, options = _parameters(family)
    try:
        head, *tail = rest.split(",")
        texts = head.split("x") if head else []
        if len(texts) != len(sizes):
            expected = "x".join(map(str.upper, sizes)) or "nothing"
            raise GraphError(f"expected {expected} after the name, got {head!r}")
        values = {p.name: _number(p.name.upper(), text, p) for p, text in zip(sizes.values(), texts, strict=True)}
        values |= {"seed": seed} if "seed" in options else {}
        return family(**values | _options(options, tail))
    except GraphError as error:
        raise GraphError(f"graph {spec!r}: {error}; the form is {SPECS[name]}") from None


def _parameters(family: Callable[..., Graph]) -> tuple[dict[str, Parameter], dict[str, Parameter]]:
    """A family's sizes, which follow the colon, and its options: `n` is the only size, or else all parameters are."""
    parameters = dict(signature(family, eval_str=True).parameters)
    sizes = {"n": parameters.pop("n")} if "n" in parameters else parameters
    return sizes, {} if sizes is parameters else parameters


def _form(name: str, family: Callable[..., Graph]) -> str:
    """The form of a spec, with optional parts in brackets: `random-connected:N[,keep=KEEP][,seed=SEED]`."""
    sizes, options = _parameters(family)
    form = name + ":" * bool(sizes) + "x".join(map(str.upper, sizes))
    for option in options.values():
        part = f",{option.name}={option.name.upper()}"
        form += part if option.default is option.empty else f"[{part}]"
    return form


SPECS: Mapping[str, str] = MappingProxyType({name: _form(name, family) for name, family in _FAMILIES.items()})
"""Every family and the form of its spec, for help texts: `SPECS["torus"] == "torus:ROWSxCOLS"`."""


def _options(options: Mapping[str, Parameter], texts: list[str]) -> dict[str, float]:
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
        values[name] = _number(name, value, options[name])
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in values:
            raise GraphError(f"{name} is missing; add {name}=…")
    return values


def _number(name: str, text: str, parameter: Parameter) -> float:
    """`text` as a number of the parameter's type."""
    try:
        return int(text) if parameter.annotation is int else float(text)
    except ValueError:
        raise GraphError(f"{name} = {text!r} is not a {'whole ' * (parameter.annotation is int)}number") from None
