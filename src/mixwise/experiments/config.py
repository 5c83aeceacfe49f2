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

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)  # fmt: skip

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
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@=-]{0,99}")
Count = Annotated[int, Field(ge=1, strict=True)]  # strict: true and yes are not counts


class Strict(BaseModel):
    """A section of a recipe; a key that it does not know is an error that lists the keys it knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

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
    parts = name.split("/") if nested else [name]
    if len(parts) > 2 or not all(map(_FOLDER_NAME.fullmatch, parts)):
        raise ConfigError(
            f"{what} {name!r} names a folder: at most 100 letters, digits, - _ . @ and =, beginning with a letter or "
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
    """The optimizer of torch.optim."""
    lr: float | str
    """Learning rate: a number, or a multiple of 1/L such as 0.3/L, L the smoothness of the task."""
    momentum: Unit = 0.0
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether the momentum is that of Nesterov."""
    betas: tuple[Unit, Unit] = (0.9, 0.999)
    """Decay rates of the moments of Adam and AdamW."""
    eps: Positive = 1e-8
    """Added to the denominator by Adam, AdamW, RMSprop and Adagrad."""
    weight_decay: NonNegative = 0.0
    """Weight decay, as torch.optim defines it for the optimizer."""
    decay_norms_and_biases: bool = True
    """Whether parameters with one dimension decay as well."""
    clip: Positive | None = None
    """Largest norm of a gradient, per node; longer ones are scaled down."""

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
    """Share of the run over which the learning rate grows linearly."""
    warmup_from: float = Field(default=0.0, ge=0, le=1)
    """Multiple of the learning rate at which the warm-up begins."""
    decay_at: list[Annotated[float, Field(gt=0, lt=1)]] = []
    """Shares of the run after which the rate is multiplied by `gamma`."""
    gamma: Share = 0.1
    """Factor of each decay."""
    cosine: bool = False
    """Half a cosine down to 0 in place of decays."""


class EdgeLink(Strict):
    """The values that differ on one edge."""

    latency: NonNegative | None = None
    bandwidth: Positive | None = None


class LinkTimes(Strict):
    """How long messages take in a simulation; `edges` such as "0-1" name places of the graph."""

    latency: NonNegative = 0.0
    """Seconds until a message begins to arrive."""
    bandwidth: Positive
    """Bytes per second."""
    edges: dict[str, EdgeLink] = {}
    """Exceptions, such as {"0-1": {bandwidth: 1.0e5}}, by places of the graph."""

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
    """Length of a run in optimizer steps; give this or `epochs`."""
    epochs: Positive | None = None
    """Length in epochs: as many steps as an average node needs to see its data once."""
    graph: str
    """The communication graph, such as ring:16, social or file:PATH."""
    placement: Literal["given", "random", "gme"] | list[int] = "given"
    """Which node takes which place of the graph: in order, drawn, searched for, or a list."""
    task: Annotated[Any, AfterValidator(partial(_checked, "task"))] = "quadratics"
    """What is learned, and which node holds what."""
    optimizer: Optimizer
    """The optimizer of all nodes; keys below."""
    schedule: Schedule = Schedule()
    """The learning rate over time; keys below."""
    algorithm: Annotated[Any, AfterValidator(partial(_checked, "algorithm"))] = "dsgd"
    """What is mixed; see docs/algorithms.md."""
    local_steps: Count = 1
    """Optimizer steps between two mixings."""
    policy: Annotated[Any, AfterValidator(partial(_checked, "policy"))]
    """The weights of each mixing; a name or a `kind` with options, below."""
    wire_dtype: Literal["auto", "bfloat16", "int8"] | None = None
    """Precision of rows in messages; auto: int8 where `links` are given."""
    message_loss: Unit = 0.0
    """Share of messages that are lost; short for faults.message_loss."""
    faults: dict[str, Any] | None = None
    """Lost messages, absent, late and hostile nodes of a simulation; see docs/faults.md."""
    robust: Literal["none", "clip"] = "none"
    """Whether rows far from a node's own are clipped."""
    on_bad: Literal["stop", "skip"] = "stop"
    """What rows with NaN, infinity or an absurd length do: end the run, or get left out."""
    links: LinkTimes | None = None
    """How long messages take in a simulation; keys below."""
    record_every: Count = 1
    """Steps from one record to the next, rounded up to whole rounds of `local_steps`."""
    evaluate_every: Count | None = None
    """Steps from one evaluation to the next; by default at the end only, of quadratics at every step."""
    checkpoint_every: Count | None = None
    """Steps from one checkpoint to the next; by default four per run."""
    device: str = "cpu"
    """Device of the rows, such as cuda."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of rows and computation."""
    data_dir: Place = None
    """Folder of the data sets; by default $MIXWISE_DATA or ~/.cache/mixwise."""
    model_dir: Place = None
    """Folder of a pretrained model that is not among the data sets."""
    tensorboard: bool = False
    """Whether to write TensorBoard logs as well."""

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

    def code(self) -> dict[str, str]:
        """Return checksums of the code of your own that the run uses, by what it is used for."""
        from mixwise.experiments.own_code import own_code  # with it torch

        families: tuple[Literal["task", "algorithm", "policy"], ...] = ("task", "algorithm", "policy")
        found = {family: own_code(self.part(family)) for family in families}
        return {family: checksum for family, checksum in found.items() if checksum is not None}


class Recipe(Strict):
    """A base configuration, variants of it, and the seeds to run them with; `further` variants run only if named."""

    name: str
    """Name of the experiment and of its folder."""
    description: str = ""
    """One line, shown by `mixwise recipes`."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    """Seeds, one run of every variant each."""
    window: Count = 1
    """Number of last records that the table averages over."""
    metrics: list[str] = Field(min_length=1)
    """Columns of the table; the first one ranks the methods."""
    placements: Literal["distinct"] | None = None
    """Run every variant once per different placement of the nodes on a small graph."""
    topologies: dict[str, str] | None = None
    """Graphs by name; every variant runs on each of them."""
    base: dict[str, Any] = {}
    """Keys of a run that all variants share."""
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    """Variants by name, with the keys in which they differ from `base`."""
    further: dict[str, dict[str, Any]] = {}
    """Variants that run only if they are named."""
    _written_by: str = PrivateAttr("")  # the version of mixwise that has written a config.yaml

    @property
    def is_described(self) -> bool:
        """Whether it describes the Python objects of `mixwise.compare`, and cannot be run."""
        return any("python" in variant for variant in self.variants.values())

    @model_validator(mode="after")
    def _names_stay_inside(self) -> Recipe:
        check_folder_name("the recipe name", self.name)
        for topology in self.topologies or {}:
            check_folder_name("topology", topology)
        for variant in (*self.variants, *self.further):
            check_folder_name("variant", variant, nested=True)
            for sign, use in (".", "a dot, which in an override separates keys"), ("=", "an =, which ends a key"):
                if sign in variant.rpartition("/")[2] and not self.is_described:
                    raise ValueError(f"variant {variant!r} has {use}; rename it")
        return self

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed is given twice; give each seed once")
        return seeds
