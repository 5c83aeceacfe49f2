"""The recipe format: what may stand in a recipe, with types, limits and errors that say what is allowed.

A recipe is a base configuration, named variants that change parts of it, and seeds (docs/recipes.md).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic import Discriminator as Choose

from mixwise.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A part of a recipe; a key that it does not know is an error that lists the keys it knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(unknown("key", str(key), cls.model_fields))
        return data


# --- weights and policies ---
Scheme = Literal["metropolis-hastings", "optimal-gap", "max-degree", "uniform"]


class Cliques(Strict):
    """Full averaging inside groups of places."""

    cliques: list[list[int]]


class FixedPolicy(Strict):
    """The same weights at every mixing; a scheme's name alone stands for this."""

    kind: Literal["fixed"] = "fixed"
    weights: Scheme | Cliques


class RandomPolicy(Strict):
    """Weights drawn anew at every mixing."""

    kind: Literal["random"]
    weights: list[Scheme | Cliques] = Field(min_length=1)
    probabilities: list[float] | None = None


class AlternatingPolicy(Strict):
    """Policies that take turns."""

    kind: Literal["alternating"]
    policies: list[PolicyConfig] = Field(min_length=1)


class ProductPolicy(Strict):
    """Policies one after the other at every mixing, one communication round each."""

    kind: Literal["product"]
    policies: list[PolicyConfig] = Field(min_length=1)


class DecoupledPolicy(Strict):
    """One policy for the parameters, one for the updates; for `algorithm: decoupled`."""

    kind: Literal["decoupled"]
    params: PolicyConfig
    updates: PolicyConfig


class SketchConfig(Strict):
    """How updates are compressed before they are compared."""

    kind: Literal["count", "gaussian", "exact"] = "count"
    dim: int = Field(default=100, ge=1)


class HeterogeneityAwarePolicy(Strict):
    """Weights re-optimized from sketches of the updates."""

    kind: Literal["heterogeneity-aware"]
    period: int = Field(default=1, ge=1)
    sketch: SketchConfig = SketchConfig()
    objective: Literal["updates", "parameters"] = "updates"
    alternate_with: PolicyConfig | None = None
    regularization: float = Field(default=0.0, ge=0)
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    symmetric: bool = False


_POLICIES = {
    "fixed": FixedPolicy,
    "random": RandomPolicy,
    "alternating": AlternatingPolicy,
    "product": ProductPolicy,
    "decoupled": DecoupledPolicy,
    "heterogeneity-aware": HeterogeneityAwarePolicy,
}


def _spelled_out(policy: Any) -> Any:
    """A scheme's name means fixed weights; a kind that there is not is an error here."""
    if isinstance(policy, str):
        return {"kind": "fixed", "weights": policy}
    kind = str(policy.get("kind", "fixed") if isinstance(policy, dict) else getattr(policy, "kind", policy))
    if kind not in _POLICIES:
        raise ValueError(unknown("policy", kind, [*get_args(Scheme), *(f"kind: {name}" for name in _POLICIES)]))
    return policy


def _kind(policy: Any) -> str:
    return str(policy.get("kind", "fixed") if isinstance(policy, dict) else policy.kind)


PolicyConfig = Annotated[
    Annotated[FixedPolicy, Tag("fixed")]
    | Annotated[RandomPolicy, Tag("random")]
    | Annotated[AlternatingPolicy, Tag("alternating")]
    | Annotated[ProductPolicy, Tag("product")]
    | Annotated[DecoupledPolicy, Tag("decoupled")]
    | Annotated[HeterogeneityAwarePolicy, Tag("heterogeneity-aware")],
    Choose(_kind),
    BeforeValidator(_spelled_out),
]


# --- tasks and optimizers ---
class QuadraticsConfig(Strict):
    """f_i(x) = ‖A_i x + b_i‖²: A_i and b_i at random, or two classes of objectives on even and odd nodes."""

    kind: Literal["quadratics"] = "quadratics"
    classes: Literal["random", "two"] = "random"
    dim: int = Field(default=10, ge=1)
    noise: float = Field(default=0.1, ge=0)


class OptimizerConfig(Strict):
    """Plain SGD; a step size such as 0.3/L is relative to the smoothness L of the task."""

    kind: Literal["sgd"] = "sgd"
    lr: float | str

    @field_validator("lr")
    @classmethod
    def _positive(cls, lr: float | str) -> float | str:
        text = str(lr).removesuffix("/L")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise ValueError("a step size is a positive number, such as 0.01, or one relative to L, such as 0.3/L")
        return f"{text}/L" if str(lr).endswith("/L") else value


class RunConfig(Strict):
    """Everything that one run needs besides its seed."""

    steps: int = Field(ge=1)
    graph: str
    placement: Literal["given", "random"] | list[int] = "given"
    task: QuadraticsConfig = QuadraticsConfig()
    optimizer: OptimizerConfig
    algorithm: Literal["dsgd", "decoupled"] = "dsgd"
    policy: PolicyConfig


class Recipe(Strict):
    """A base configuration, variants of it, and the seeds to run them with."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    description: str = ""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    window: int = Field(default=5, ge=1)
    metrics: list[str] = Field(min_length=1)
    placements: Literal["distinct"] | None = None
    base: dict[str, Any] = {}
    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_@-]*$")], dict[str, Any]] = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed is given twice; give each seed once")
        return seeds


def unknown(what: str, name: str, allowed: Any) -> str:
    """One sentence for a name that is not allowed: what is, and what was perhaps meant."""
    close = get_close_matches(name, list(allowed), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"unknown {what} {name!r}; allowed: {', '.join(allowed)}{hint}"


def validated(model: type[Model], data: Any, where: str) -> Model:
    """`data` as a `model`, or a ConfigError of one line that names the place, the value and the rule."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(part for part in map(str, first["loc"]) if part not in _POLICIES and not _is_type(part))
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        value = first.get("input")
        if isinstance(value, str | int | float | bool):
            path = f"{path} = {value!r}" if path else repr(value)
        raise ConfigError(": ".join(part for part in (where, path, message) if part)) from None


def _is_type(part: str) -> bool:
    """Whether a part of an error's path is not a key but the name of an alternative in a union."""
    return part.startswith(("literal[", "list[")) or part in ("Cliques", "float", "str")
