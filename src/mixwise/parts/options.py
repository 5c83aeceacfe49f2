"""Options: which arguments have a form in a recipe, and how a value is checked against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from numbers import Integral, Real
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationError

from mixwise.parts.declaration import family_of
from mixwise.parts.registry import built
from mixwise.parts.types import Family, OptionError

_PLAIN = (str, int, float, list, tuple, Mapping, NoneType)  # what YAML reads
_CONTAINERS: Mapping[Any, Any] = {tuple: tuple, list: list, Sequence: list, Iterable: list, dict: dict, Mapping: dict}


class Option:
    """One argument that a recipe can set."""

    def __init__(self, form: Any, hint: Any) -> None:
        self.hint, self._adapter = hint, TypeAdapter[Any](form)

    def checked(self, name: str, value: Any) -> Any:
        """The value as Python has it, with the parts that it names built; or an OptionError."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise explained(error).at(name) from None

    def checked_argument(self, name: str, value: Any) -> Any:
        """The same for an argument in Python; an object that no recipe can hold is taken as it is."""
        if isinstance(value, Real) and not isinstance(value, bool | int | float):  # a NumPy scalar
            value = int(value) if isinstance(value, Integral) else float(value)
        if not isinstance(value, _PLAIN):
            return value
        try:
            return self.checked(name, value)
        except OptionError:
            if isinstance(value, list | tuple) and not all(isinstance(item, _PLAIN) for item in value):
                return value  # a list of objects that no recipe can hold
            raise


def recipe_options(hints: Mapping[str, Any]) -> dict[str, Option]:
    """The options among annotated arguments."""
    return {name: Option(form, hint) for name, hint in hints.items() if (form := _form(hint)) is not None}


def explained(error: ValidationError) -> OptionError:
    """The first problem that pydantic found, as one line; a problem inside of a nested part before any other."""
    found = error.errors()
    nested = [each for each in found if isinstance(each.get("ctx", {}).get("error"), OptionError)]
    first = (nested or found)[0]
    path = tuple(str(key) for key in first["loc"] if not _is_alternative(key))
    if nested:
        inner: OptionError = first["ctx"]["error"]
        return inner.at(*path)
    message = first["msg"].removeprefix("Value error, ")
    return OptionError(message[0].lower() + message[1:], path, first.get("input"))


def _form(hint: Any) -> Any:
    """The type that a recipe's value has where Python has `hint`; None if there is none."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (str, bool, NoneType, Any) or origin is Literal:
        return hint
    if hint is int:
        return Annotated[int, Field(strict=True)]  # yes and 2.0 are no counts
    if hint is float:
        return Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]  # "1e-3" is a string in YAML
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    if (name := family_of(hint)) is not None:
        return Annotated[Any, PlainValidator(partial(built, name))]
    if origin is Annotated:
        named = next((each.name for each in args[1:] if isinstance(each, Family)), None)
        if named is not None:
            return Annotated[Any, PlainValidator(partial(built, named))]
        inner = _form(args[0])
        return None if inner is None else Annotated[(inner, *args[1:])]
    if origin in (Union, UnionType):
        forms = [form for each in args if (form := _form(each)) is not None]
        return reduce(or_, forms) if set(forms) - {NoneType} else None
    if origin in _CONTAINERS:
        inside = [each if each is Ellipsis else _form(each) for each in args]
        return None if None in inside else _CONTAINERS[origin][tuple(inside)]
    return None


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("input should be a valid number")
    return value


def _is_alternative(key: str | int) -> bool:
    """Whether an item of pydantic's path is the name of an alternative in a union, not a key."""
    return isinstance(key, str) and ("[" in key or key in ("float", "str", "int", "bool", "none"))
