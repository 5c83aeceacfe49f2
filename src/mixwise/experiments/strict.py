"""What every part of a recipe is: keys that are known, and errors of one line that say what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from mixwise.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")


class Strict(BaseModel):
    """A part of a recipe; a key that it does not know is an error that lists the keys it knows.

    `removed` explains each key of an earlier version that is gone, and names the one value that is still accepted, and
    ignored, because it asks for what is now always done.
    """

    removed: ClassVar[Mapping[str, tuple[object, str]]] = {}  # key -> (accepted value, explanation)
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key, value in data.items():
                if key in cls.removed and value != cls.removed[key][0]:
                    raise ValueError(f"{key}: {value} was removed in {cls.removed[key][1]}")
                if key not in cls.model_fields and key not in cls.removed:
                    raise ValueError(unknown("key", str(key), cls.model_fields))
            return {key: value for key, value in data.items() if key not in cls.removed}
        return data


def unknown(what: str, name: str, allowed: Any) -> str:
    """One sentence for a name that is not allowed: what is, and what was perhaps meant."""
    close = get_close_matches(name, list(allowed), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"unknown {what} {name!r}; allowed: {', '.join(allowed)}{hint}"


def check_folder_name(what: str, name: str, nested: bool = False) -> None:
    """Refuse a name that could not be a folder inside the run folder, such as ../other.

    Args:
        what: whose name it is.
        name: the name.
        nested: whether it may be topology/variant, as in the config.yaml of a run.
    """
    if not all(map(_FOLDER_NAME.fullmatch, name.split("/") if nested else [name])):
        raise ConfigError(
            f"{what} {name!r} names a folder: at most 100 letters, digits, - _ . and @, beginning with a letter or "
            f"digit; rename it"
        )


def validated(model: type[Model], data: Any, where: str) -> Model:
    """`data` as a `model`, or a ConfigError of one line that names the place, the value and the rule."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(part for part in map(str, first["loc"]) if not _is_alternative(part))
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        value = first.get("input")
        if isinstance(value, str | int | float | bool):
            path = f"{path} = {value!r}" if path else repr(value)
        raise ConfigError(": ".join(part for part in (where, path, message) if part)) from None


def kind_of(part: Any, default: str) -> str:
    """The kind of a part of a recipe, as data or already a model."""
    return str(part.get("kind", default) if isinstance(part, dict) else getattr(part, "kind", part))


def _is_alternative(part: str) -> bool:
    """Whether a part of an error's path is not a key but the name of an alternative in a union."""
    return part.startswith(("literal[", "list[", "kind: ")) or part in ("Cliques", "float", "str")
