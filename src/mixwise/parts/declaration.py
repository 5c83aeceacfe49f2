"""Declaring parts: `part` attaches a name and words to a class or function, and checks the arguments of a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from inspect import Parameter, signature
from string import Formatter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from mixwise.errors import unknown
from mixwise.parts.types import FAMILIES, OptionError

if TYPE_CHECKING:
    from mixwise.parts.options import Option

Target = TypeVar("Target", bound=Callable[..., Any])
Base = TypeVar("Base", bound=type)

_DECLARED: dict[Any, Declaration] = {}
_BASES: dict[type, str] = {}
FUNCTIONS = (FunctionType, type(cache(len)))
_ANY_NUMBER = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def family(name: str) -> Callable[[Base], Base]:
    """Mark a base class or protocol: its subclasses, and arguments of its type, are parts of the family `name`."""

    def mark(base: Base) -> Base:
        _BASES[base] = FAMILIES[name].name
        return base

    return mark


def family_of(target: Any) -> str | None:
    """The family of a class by its bases, if it has one."""
    bases = target.__mro__ if isinstance(target, type) else ()
    return next((_BASES[base] for base in bases if base in _BASES), None)


def _where(target: Any) -> str:
    return f"{target.__module__}:{target.__qualname__}"


def part(
    name: str, family: str | None = None, *, title: str, cite: str = "", reference: bool = False, **columns: str | int
) -> Callable[[Target], Target]:
    """Declare a part; the class or function itself stays as it is, but a dataclass now checks its arguments.

    Args:
        name: how a recipe names the part.
        family: a key of `FAMILIES`; not needed for a class whose base is marked with `family`.
        title: how a report names it, with `{field}` for the value of a field. A class whose words need more than that
            defines `describe(self) -> str`.
        cite: where the method comes from.
        reference: whether every node hears all others; reports show such a method apart, as a yardstick for gossip.
        columns: further cells of its row in the tables of the documentation and of `mixwise recipes`.
    """

    def declare(target: Target) -> Target:
        found, where = family or family_of(target), _where(target)
        if found is None or found not in FAMILIES:
            raise TypeError(f"{where}: family = {found!r}; name one of {', '.join(FAMILIES)}, or mark a base class")
        made = Declaration(found, name, title, cite, columns, target, reference)
        if "kind" in made.defaults:
            raise TypeError(f"{where}: rename the argument 'kind', which in a recipe is the name of the part")
        _DECLARED[target] = made
        if isinstance(target, type) and dataclasses.is_dataclass(target):
            _check_arguments(target, made)
        return target

    return declare


@dataclass(frozen=True)
class Declaration:
    """A part as it was declared; see `part`. The target is its class or function."""

    family: str
    name: str
    title: str
    cite: str
    columns: Mapping[str, str | int]
    target: Callable[..., Any]
    reference: bool = False

    @property
    def where(self) -> str:
        """The target as `module:attribute`."""
        return _where(self.target)

    @property
    def supplied(self) -> tuple[str, ...]:
        """The arguments that come from the run."""
        return FAMILIES[self.family].supplied if self.family else ()

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The arguments of the target with their defaults, `Parameter.empty` where there is none."""
        made = {}
        if dataclasses.is_dataclass(self.target):
            fields = dataclasses.fields(self.target)
            made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
        arguments = [p for p in signature(self.target).parameters.values() if p.kind not in _ANY_NUMBER]
        return {p.name: made.get(p.name, p.default) for p in arguments}

    @cached_property
    def arguments(self) -> Mapping[str, Option]:
        """The arguments whose types have a form in a recipe."""
        from mixwise.parts.options import recipe_options  # with it pydantic, which `import mixwise` does not need

        plain_class = isinstance(self.target, type) and not dataclasses.is_dataclass(self.target)
        try:
            hints = get_type_hints(vars(self.target)["__init__"] if plain_class else self.target, include_extras=True)
        except NameError as error:
            raise TypeError(f"{self.where}: {error}; recipes need it: import it outside of TYPE_CHECKING") from None
        return recipe_options({name: hints[name] for name in self.defaults if name in hints})

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The arguments that a recipe can set."""
        return {name: option for name, option in self.arguments.items() if name not in self.supplied}

    def build(self, given: Mapping[str, Any]) -> Any:
        """The part with these options of a recipe: an object, or a function with its options bound."""
        for key in given:
            if key not in self.options:
                none = f"unknown key {key!r}; {self.name} has no options"
                raise OptionError(unknown("key", str(key), self.options) if self.options else none)
        checked = {key: self.options[key].checked(key, value) for key, value in given.items()}
        if self.family and FAMILIES[self.family].called:
            return Bound(self, checked) if self.options else self.target
        self.check_complete(checked)
        return self.target(**checked)

    def check_complete(self, given: Iterable[str]) -> None:
        """Reject a call without an argument that has no default."""
        for name, default in self.defaults.items():
            if default is Parameter.empty and name not in given:
                raise OptionError(f"{name} is missing; {self.name} needs it: add {name}: …")


@dataclass(frozen=True, eq=False)
class Bound:
    """A function that a recipe names, with the options that the recipe sets."""

    part: Declaration
    options: Mapping[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the rest of its arguments, in their order or by name."""
        rest = (name for name in self.part.defaults if name not in self.options)
        given = {**dict(zip(rest, args, strict=False)), **kwargs, **self.options}
        self.part.check_complete(given)
        return self.part.target(**given)

    def __eq__(self, other: object) -> bool:
        """Whether both call the same function with the same options, defaults included."""
        if not isinstance(other, Bound) or other.part.target is not self.part.target:
            return False
        defaults = self.part.defaults
        return {**defaults, **self.options} == {**defaults, **other.options}

    def __hash__(self) -> int:
        return hash(self.part.target)


def supply(function: Callable[..., Any], **available: Any) -> Any:
    """Call a part that is a function with those available arguments that it has and that its options do not set."""
    bound = function if isinstance(function, Bound) else Bound(declaration(function), {})
    return bound(**{name: available[name] for name in bound.part.defaults if name in available.keys() - bound.options})


def declaration(target: Any) -> Declaration:
    """The declaration of a class or function; one that was not declared goes by its own name."""
    if target in _DECLARED:
        return _DECLARED[target]
    return Declaration(family_of(target) or "", _where(target), target.__qualname__, "", {}, target)


def declared() -> Iterable[Declaration]:
    """All parts in the modules that have been imported so far."""
    return _DECLARED.values()


def about(part: Any) -> Declaration:
    """The declaration of a part, which is an object, a class, a function, or a function with its options."""
    if isinstance(part, Bound):
        return part.part
    return declaration(part if isinstance(part, (type, *FUNCTIONS)) else type(part))


def kind(part: Any) -> str:
    """The name of a part in a recipe; fixed weights go by the name of their scheme.

    >>> from mixwise.policies import Fixed
    >>> kind(Fixed("metropolis-hastings"))
    'metropolis-hastings'
    """
    declared = about(part)
    family = FAMILIES.get(declared.family)
    if family is not None and family.shorthand is not None and declared.name == family.default:
        inner = vars(part)[family.shorthand[1]]
        return kind(inner) if _is_part(inner) else declared.name
    return declared.name


def is_reference(part: Any) -> bool:
    """Whether a part, or one inside of it, is declared as a reference."""
    inside = part.options if isinstance(part, Bound) else {} if isinstance(part, (type, *FUNCTIONS)) else vars(part)
    return about(part).reference or any(is_reference(each) for each in inside.values() if _is_part(each))


def _is_part(value: Any) -> bool:
    return isinstance(value, (Bound, *FUNCTIONS)) or type(value) in _DECLARED


def words(part: Any) -> str:
    """A part as a report names it: its title, and the options that differ from their defaults.

    >>> from mixwise.mixing import metropolis_hastings
    >>> words(metropolis_hastings)
    'Metropolis-Hastings weights'
    """
    declared, values = about(part), part.options if isinstance(part, Bound) else {}
    if not isinstance(part, (Bound, type, *FUNCTIONS)):
        values = vars(part)
        if (describe := getattr(part, "describe", None)) is not None:
            return str(describe())
    usual, shown = _shown(declared.defaults), _shown(values)
    hidden = {*(name for _, name, _, _ in Formatter().parse(declared.title)), *declared.supplied}
    further = [f"{name} {text}" for name, text in shown.items() if name not in hidden and text != usual.get(name)]
    return declared.title.format_map({**usual, **shown}) + (f" ({', '.join(further)})" if further else "")


def _shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that can stand in a sentence, with parts in words."""
    parts = {k: words(v) for k, v in options.items() if _is_part(v)}
    return {k: parts.get(k, v) for k, v in options.items() if k in parts or isinstance(v, str | int | float | tuple)}


def _check_arguments(cls: type, about: Declaration) -> None:
    """Make the constructor of a dataclass check its arguments against their types, as a recipe's options are."""
    construct, parameters = cls.__init__, signature(cls)  # type: ignore[misc]

    @wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments  # nothing to check, and no pydantic, if all are defaults
        for name in given:
            if name in about.arguments:
                given[name] = about.arguments[name].checked_argument(name, given[name])
        construct(self, **given)

    cls.__init__ = checked  # type: ignore[misc]
