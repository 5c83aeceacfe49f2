"""Policies as a recipe writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Tag
from pydantic import Discriminator as Choose

from mixwise.experiments.strict import Strict, kind_of, unknown

Scheme = Literal[
    "metropolis-hastings", "optimal-gap", "max-degree", "uniform", "lazy-metropolis-hastings", "full-averaging"
]


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
    kind = kind_of(policy, "fixed")
    if kind not in _POLICIES:
        raise ValueError(unknown("policy", kind, [*get_args(Scheme), *(f"kind: {name}" for name in _POLICIES)]))
    return policy


PolicyConfig = Annotated[
    Annotated[FixedPolicy, Tag("kind: fixed")]
    | Annotated[RandomPolicy, Tag("kind: random")]
    | Annotated[AlternatingPolicy, Tag("kind: alternating")]
    | Annotated[ProductPolicy, Tag("kind: product")]
    | Annotated[DecoupledPolicy, Tag("kind: decoupled")]
    | Annotated[HeterogeneityAwarePolicy, Tag("kind: heterogeneity-aware")],
    Choose(lambda policy: f"kind: {kind_of(policy, 'fixed')}"),
    BeforeValidator(_spelled_out),
]
