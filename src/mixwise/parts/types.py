"""The types of options, the families of parts, and the error for a value that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeAlias

from annotated_types import Ge, Gt, Interval

from mixwise.errors import ConfigError

Unit: TypeAlias = Annotated[float, Interval(ge=0, lt=1)]
"""A number in [0, 1), such as a momentum."""
Share: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
"""A number in (0, 1], such as a communication budget."""
Probability: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
"""A number in [0, 1]."""
Positive: TypeAlias = Annotated[float, Gt(0)]
"""A number above 0."""
NonNegative: TypeAlias = Annotated[float, Ge(0)]
"""A number of 0 or more."""
Natural: TypeAlias = Annotated[int, Ge(0)]
"""A whole number of 0 or more."""
Count: TypeAlias = Annotated[int, Ge(1)]
"""A whole number of 1 or more."""


class Family(NamedTuple):
    """One kind of parts.

    As metadata of a type it says that a recipe names a part of this family:
    `Scheme = Annotated[Callable[[Graph], MixingMatrix], FAMILIES["scheme"]]`.
    """

    name: str
    default: str | None = None  # the kind of a mapping that names none
    supplied: tuple[str, ...] = ()  # arguments that come from the run, so a recipe cannot set them
    shorthand: tuple[str, str] | None = None  # a name of this other family stands for {kind: default, option: name}
    called: bool = False  # whether its parts are functions, which the run calls with the rest of their arguments


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("algorithm", "dsgd"),
        Family("policy", "fixed", shorthand=("scheme", "weights")),
        Family("scheme", "cliques", called=True),
        Family("sketch", "count", ("seed",)),
        Family("compressor", "top-k", ("seed",)),
        Family("graph", called=True),
        Family("data", None, ("data_dir",), called=True),
        Family("model", None, ("seed",), called=True),
        Family("partition", "dirichlet", ("labels", "samples", "nodes", "seed"), called=True),
        Family("task", "quadratics", ("nodes", "seed", "run"), called=True),
    )
}


class OptionError(ConfigError):
    """A value that a recipe or a constructor does not accept, with the path to it: `policy.inner.beta = 1.5: …`."""

    def __init__(self, message: str, path: tuple[str, ...] = (), value: object = ...) -> None:
        self.message, self.path, self.value = message, path, value
        place = ".".join(path)
        if isinstance(value, str | int | float | list | tuple | None) and len(repr(value)) <= 80:
            place = f"{place} = {value!r}" if place else repr(value)
        super().__init__(f"{place}: {message}" if place else message)

    def at(self, *outer: str) -> OptionError:
        """The same error with a longer path."""
        return OptionError(self.message, (*filter(None, outer), *self.path), self.value)
