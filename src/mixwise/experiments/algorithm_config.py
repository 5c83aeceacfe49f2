"""Algorithms as a recipe writes them: a name, or a kind with options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag
from pydantic import Discriminator as Choose

from mixwise.experiments.strict import Strict, kind_of, unknown

Plain = Literal[
    "dsgd", "combine-then-adapt", "combine-while-adapt", "decoupled", "d2", "extra", "gradient-tracking", "dadam",
    "relay", "push-sum", "all-reduce", "local-sgd",
]  # fmt: skip
Inner = Literal["dsgd", "relay", "d2", "push-sum"]


class PlainAlgorithm(Strict):
    """An algorithm without options."""

    kind: Plain


class QuasiGlobalConfig(Strict):
    """Momentum made of the movement after mixing; `inner` does the mixing."""

    kind: Literal["quasi-global"]
    beta: float = Field(default=0.9, ge=0, lt=1)
    mu: float | None = Field(default=None, ge=0, lt=1)
    nesterov: bool = True
    inner: Inner = "dsgd"


class QuasiGlobalAdamConfig(Strict):
    """Adam whose moments are made of the movement after mixing."""

    kind: Literal["quasi-global-adam"]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    inner: Inner = "dsgd"


class DecentLaMConfig(Strict):
    """Momentum on the whole movement of a step, mixing included."""

    kind: Literal["decentlam"]
    beta: float = Field(default=0.9, ge=0, lt=1)


class ChocoConfig(Strict):
    """Compressed gossip: a share of the entries (`top_k`), or a few bits per entry (`bits`)."""

    kind: Literal["choco"]
    gamma: float = Field(default=0.1, gt=0, le=1)
    top_k: float = Field(default=0.1, gt=0, le=1)
    bits: int | None = Field(default=None, ge=1, le=16)


_WITH_OPTIONS = {
    "quasi-global": QuasiGlobalConfig,
    "quasi-global-adam": QuasiGlobalAdamConfig,
    "decentlam": DecentLaMConfig,
    "choco": ChocoConfig,
}
_PLAIN: tuple[str, ...] = Plain.__args__  # type: ignore[attr-defined]
ALGORITHM_KINDS = [*_PLAIN, *_WITH_OPTIONS]


def _spelled_out(algorithm: Any) -> Any:
    """A name alone means no options; a kind that there is not is an error here."""
    kind = algorithm if isinstance(algorithm, str) else kind_of(algorithm, "dsgd")
    if kind not in ALGORITHM_KINDS:
        raise ValueError(unknown("algorithm", kind, ALGORITHM_KINDS))
    return {"kind": algorithm} if isinstance(algorithm, str) else algorithm


def _tag(algorithm: Any) -> str:
    kind = kind_of(algorithm, "dsgd")
    return f"kind: {kind}" if kind in _WITH_OPTIONS else "kind: plain"


AlgorithmConfig = Annotated[
    Annotated[PlainAlgorithm, Tag("kind: plain")]
    | Annotated[QuasiGlobalConfig, Tag("kind: quasi-global")]
    | Annotated[QuasiGlobalAdamConfig, Tag("kind: quasi-global-adam")]
    | Annotated[DecentLaMConfig, Tag("kind: decentlam")]
    | Annotated[ChocoConfig, Tag("kind: choco")],
    Choose(_tag),
    BeforeValidator(_spelled_out),
]
