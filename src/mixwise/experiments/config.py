"""The recipe format: the sections of a recipe with their types and bounds.

A recipe is a base configuration, named variants that change parts of it, and seeds (docs/recipes.md). The options of
its task, algorithm and policy follow from their declarations (`mixwise.parts`); the sections here are fixed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mixwise.errors import ConfigError, unknown
from mixwise.parts import NonNegative, Positive, Share, Unit, build
from mixwise.parts.declaration import declaration
from mixwise.parts.options import explained
from mixwise.parts.types import OptionError

if TYPE_CHECKING:
    from mixwise.experiments.build import Prepared
    from mixwise.network import Faults
    from mixwise.network.world import World

Model = TypeVar("Model", bound=BaseModel)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
Count = Annotated[int, Field(ge=1, strict=True)]  # strict: true and yes are not counts


class Strict(BaseModel):
    """A section of a recipe; a key that it does not know is an error that lists the keys it knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(unknown("key", str(key), cls.model_fields))
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


def _absolute(path: str | None) -> str | None:
    """The path from any folder, so that the configuration of a run works elsewhere."""
    return os.path.abspath(os.path.expanduser(path)) if path else path


Place = Annotated[str | None, AfterValidator(_absolute)]


class Optimizer(Strict):
    """A `torch.optim` optimizer; a step size such as 0.3/L is relative to the smoothness L of the task."""

    kind: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"] = "sgd"
    lr: float | str
    momentum: Unit = 0.0
    nesterov: bool = False
    betas: tuple[Unit, Unit] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    decay_norms_and_biases: bool = True
    clip: Positive | None = None

    @field_validator("lr")
    @classmethod
    def _positive(cls, lr: float | str) -> float | str:
        number = str(lr).removesuffix("/L")
        with suppress(ValueError):
            if 0 < float(number) < float("inf"):
                return f"{number}/L" if str(lr).endswith("/L") else float(number)
        raise ValueError("a step size is a positive number, such as 0.01, or one relative to L, such as 0.3/L")


class Schedule(Strict):
    """The learning rate over time; warm-up and decays at shares of the run."""

    warmup: Unit = 0.0
    warmup_from: float = Field(default=0.0, ge=0, le=1)
    decay_at: list[Annotated[float, Field(gt=0, lt=1)]] = []
    gamma: Share = 0.1
    cosine: bool = False


class EdgeLink(Strict):
    """The values that differ on one edge."""

    latency: NonNegative | None = None
    bandwidth: Positive | None = None


class LinkTimes(Strict):
    """How long messages take in a simulation; `edges` such as "0-1" name places of the graph."""

    latency: NonNegative = 0.0
    bandwidth: Positive
    edges: dict[str, EdgeLink] = {}

    @field_validator("edges")
    @classmethod
    def _pairs(cls, edges: dict[str, EdgeLink]) -> dict[str, EdgeLink]:
        for name in edges:
            if not re.fullmatch(r"\d+-\d+", name):
                raise ValueError(f"{name!r} is no edge; write the two places it connects, such as 0-1")
        return edges


def _checked(family: str, value: Any) -> Any:
    """Return the value unchanged, if a part can be built from it."""
    build(family, value)
    return value


class RunConfig(Strict):
    """Everything that one run needs besides its seed; task, algorithm and policy as the recipe writes them."""

    steps: Count | None = None
    epochs: Positive | None = None
    graph: str
    placement: Literal["given", "random", "gme"] | list[int] = "given"
    task: Annotated[Any, AfterValidator(partial(_checked, "task"))] = "quadratics"
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    algorithm: Annotated[Any, AfterValidator(partial(_checked, "algorithm"))] = "dsgd"
    local_steps: Count = 1
    policy: Annotated[Any, AfterValidator(partial(_checked, "policy"))]
    wire_dtype: Literal["auto", "bfloat16", "int8"] | None = None
    message_loss: Unit = 0.0  # short for faults.message_loss
    faults: dict[str, Any] | None = None
    robust: Literal["none", "clip"] = "none"
    on_bad: Literal["stop", "skip"] = "stop"
    links: LinkTimes | None = None
    record_every: Count = 1
    evaluate_every: Count | None = None
    checkpoint_every: Count | None = None
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    data_dir: Place = None
    model_dir: Place = None
    tensorboard: bool = False

    @field_validator("graph")
    @classmethod
    def _found_from_anywhere(cls, graph: str) -> str:
        kind, _, path = graph.partition(":")
        return f"file:{_absolute(path)}" if kind == "file" and path else graph

    @model_validator(mode="after")
    def _said_once(self) -> RunConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give the length of a run as steps or as epochs, and not both")
        if self.message_loss and "message_loss" in (self.faults or {}):
            raise ValueError("message_loss is short for faults.message_loss; give one of them")
        self.network_faults()
        return self

    def network_faults(self) -> Faults | None:
        """The faults of the simulated network, built from the recipe's words; None without any."""
        given = ({"message_loss": self.message_loss} if self.message_loss else {}) | (self.faults or {})
        if not given:
            return None
        from mixwise.network import Faults  # with it torch, which a list of recipes does not need

        try:
            found: Faults = declaration(Faults).build(given)
        except OptionError as error:
            raise error.at("faults") from None
        return found or None

    def part(self, family: Literal["task", "algorithm", "policy"]) -> Any:
        """The task, algorithm or policy of the run, built from the recipe's words."""
        return build(family, getattr(self, family), family)

    def prepare(self, seed: int, world: World, *, check: bool = True) -> Prepared:
        """Build the run of a seed; with `check`, a wrong value or combination is an error."""
        from mixwise.experiments.build import prepare  # with it torch, which listing recipes does not need

        return prepare(self, seed, world, check=check)

    def described(self) -> dict[str, Any]:
        """Return the run as config.yaml holds it."""
        return self.model_dump(exclude_none=True)

    def matches(self, written: Mapping[str, Any]) -> bool:
        """Whether config.yaml describes this run, however much of the defaults it spells out."""
        other = validated(RunConfig, written, "config.yaml")
        families: list[Literal["task", "algorithm", "policy"]] = ["task", "algorithm", "policy"]
        parts = [[*map(config.part, families), config.network_faults()] for config in (self, other)]
        rest = [config.model_dump(exclude={*families, "faults", "message_loss"}) for config in (self, other)]
        return rest[0] == rest[1] and parts[0] == parts[1]


class Recipe(Strict):
    """A base configuration, variants of it, and the seeds to run them with; `further` variants run only if named."""

    name: str
    description: str = ""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    window: Count = 1
    metrics: list[str] = Field(min_length=1)
    placements: Literal["distinct"] | None = None
    topologies: dict[str, str] | None = None
    base: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    further: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _names_stay_inside(self) -> Recipe:
        check_folder_name("the recipe name", self.name)
        for topology in self.topologies or {}:
            check_folder_name("topology", topology)
        for variant in (*self.variants, *self.further):
            check_folder_name("variant", variant, nested=True)
            if "." in variant.rpartition("/")[2]:
                raise ValueError(f"variant {variant!r} has a dot, which in an override separates keys; rename it")
        return self

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed is given twice; give each seed once")
        return seeds
