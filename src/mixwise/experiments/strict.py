"""The base of every fixed section of a recipe: unknown keys are errors of one line that lists the allowed ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from mixwise.errors import ConfigError, unknown
from mixwise.parts.options import explained

Model = TypeVar("Model", bound=BaseModel)

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")


class Strict(BaseModel):
    """A section of a recipe; a key that it does not know is an error that lists the keys it knows.

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
        raise ConfigError(f"{where}: {explained(error)}" if where else str(explained(error))) from None
