"""Momentum from the movement after mixing, which all nodes nearly share: quasi-global momentum (Lin et al. 2021).

    m = β m̂ + g;  X′ = X − η m  (Nesterov: X − η (β m + g));  X⁺ = mixing of X′
    d = (X − X⁺)/η;  m̂⁺ = μ m̂ + (1 − μ) d

Weight decay is part of the gradient g, as in the authors' code. The mixing is done by any other algorithm: D-SGD as in
the paper, or RelaySGD.

DecentLaM has its momentum on the whole movement of a D-SGD step, mixing included (Yuan et al. 2021):

    g̃ = (X − Wᵀ(X − η g)) / η;  m⁺ = β m + g̃;  X⁺ = X − η m⁺

Momentum on g alone multiplies the bias caused by heterogeneous data by 1 / (1 − β)²; this momentum does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch

from mixwise.algorithms.dsgd import DSGD, mix_in_place
from mixwise.algorithms.in_place import call_in_place
from mixwise.errors import TrainingError
from mixwise.parts import Positive, Unit, part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


@dataclass(frozen=True)
class _Around(Algorithm):
    """An algorithm that leaves the mixing to an inner one.

    Args:
        inner: the algorithm that mixes.
    """

    memory: ClassVar[tuple[str, ...]]  # the names of the moments
    one_lr: ClassVar[bool] = False  # whether the movement is divided by the learning rate

    inner: Algorithm = field(default=DSGD(), kw_only=True)

    def __post_init__(self) -> None:
        name, optimizer = type(self.inner).__name__, self.inner.needs.optimizer
        if optimizer == "sgd":
            raise TrainingError(f"{name} has a momentum of its own; use one of the two")
        if optimizer == "adam":
            raise TrainingError(f"{name} needs Adam, but inside {type(self).__name__} the optimizer is SGD; use D-SGD")

    @cached_property
    def needs(self) -> Needs:  # type: ignore[override]  # it depends on the inner algorithm
        """The needs of the inner algorithm, and SGD without momentum."""
        needs = replace(self.inner.needs, previous=True, optimizer="sgd", own_momentum=True, early=False)
        return replace(needs, one_lr=self.one_lr)

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with all moments at 0."""
        rows = {name: torch.zeros_like(X) for name in self.memory}
        return State(rows, parts={"inner": self.inner.init(X, context.at("inner"))})

    def update(self, round: Round, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the update of the inner algorithm."""
        return self.inner.update(round, state.parts["inner"])

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return the rows that the inner algorithm mixes."""
        return self.inner.rows_to_mix(round, state.parts["inner"])

    def models(self, X: torch.Tensor, state: State) -> torch.Tensor:
        """Return the models of the inner algorithm."""
        return self.inner.models(X, state.parts["inner"])

    def _movement(self, round: Round, plan: Plan, state: State, network: Network) -> torch.Tensor:
        """Mix with the inner algorithm, and return X − X⁺ in the memory of X."""
        X = round.before
        inner = replace(round, X=X.clone()) if self.inner.needs.previous else round
        call_in_place(self.inner.mix, "round.X_prime", inner, plan, state.parts["inner"], network)
        return X.sub_(round.X_prime)


@part(
    "quasi-global", title="quasi-global momentum", cite="Lin et al. 2021",
    step="momentum of (X − X⁺)/η", mixes="as its inner one", condition="as its inner one",
    note="It has its own momentum: the optimizer is SGD without one",
)  # fmt: skip
@dataclass(frozen=True)
class QuasiGlobalMomentum(_Around):
    """QG-DSGDm-N, or QG-DSGDm without `nesterov`.

    Args:
        inner: the algorithm that mixes.
        beta: β, the weight of the momentum in a step.
        mu: μ, how slowly the momentum follows; β by default, as in the paper.
        nesterov: whether to look ahead.
    """

    memory = ("momentum",)
    one_lr = True

    beta: Unit = 0.9
    mu: Unit | None = None
    nesterov: bool = True

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Turn g into β m̂ + g, or with Nesterov's look-ahead into β (β m̂ + g) + g."""
        call_in_place(self.inner.direction, "G", G, state.parts["inner"], network)
        if self.nesterov:
            G.mul_(1 + self.beta).add_(state.rows["momentum"], alpha=self.beta**2)
        else:
            G.add_(state.rows["momentum"], alpha=self.beta)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix, and update the momentum from the movement."""
        d, mu = self._movement(round, plan, state, network), self.beta if self.mu is None else self.mu
        if round.lr > 0:  # a warm-up from 0 has not moved yet
            state.rows["momentum"].mul_(mu).add_(d, alpha=(1 - mu) / round.lr)


@part(
    "quasi-global-adam", title="quasi-global Adam", cite="Lin et al. 2021",
    step="Adam's moments of (X − X⁺)/‖X − X⁺‖", mixes="as its inner one", condition="as its inner one",
    note="The optimizer is SGD without momentum",
)  # fmt: skip
@dataclass(frozen=True)
class QuasiGlobalAdam(_Around):
    """QG-DAdam: both moments follow the direction d / ‖d‖ of the movement after mixing.

    m = β₁ m̂ + (1 − β₁) g;  v = β₂ v̂ + (1 − β₂) g²;  X′ = X − η m / (√v + ε);  d̂ = d / ‖d‖ per node
    m̂⁺ = β₁ m̂ + (1 − β₁) d̂;  v̂⁺ = β₂ v̂ + (1 − β₂) d̂²

    Neither moment is corrected for its start at 0; the authors' code divides m and v by Adam's 1 − β₁ᵗ and 1 − β₂ᵗ. The
    first step is (1 − β₁) / √(1 − β₂) = 3.2 times as long without that, and the factor goes to 1 as t grows.

    Args:
        inner: the algorithm that mixes.
        betas: β₁ and β₂.
        eps: ε.
    """

    memory = ("momentum", "squares")

    betas: tuple[Unit, Unit] = (0.9, 0.999)
    eps: Positive = 1e-8

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Turn g into m / (√v + ε)."""
        call_in_place(self.inner.direction, "G", G, state.parts["inner"], network)
        first, second = self.betas
        v = (state.rows["squares"] * second).addcmul_(G, G, value=1 - second)
        G.mul_(1 - first).add_(state.rows["momentum"], alpha=first).div_(v.sqrt_().add_(self.eps))

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix, and update both moments from the movement."""
        d = self._movement(round, plan, state, network)
        length = d.norm(dim=1, keepdim=True)
        d.div_(torch.where(length > 0, length, torch.ones_like(length)))
        first, second = self.betas
        state.rows["momentum"].mul_(first).add_(d, alpha=1 - first)
        state.rows["squares"].mul_(second).addcmul_(d, d, value=1 - second)


@part(
    "decentlam", title="DecentLaM", cite="Yuan et al. 2021",
    step="X⁺ = X − ηm, m⁺ = βm + (X − WᵀX′)/η", note="The optimizer is SGD without momentum",
)  # fmt: skip
@dataclass(frozen=True)
class DecentLaM(Algorithm):
    """Momentum after the mixing, with weight β = `beta`."""

    needs = Needs(previous=True, optimizer="sgd")

    beta: Unit = 0.9

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start without momentum."""
        return State(rows={"momentum": torch.zeros_like(X)})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix, and take the whole movement as the gradient."""
        X = round.before
        mixed = mix_in_place(round.X_prime, plan.one_channel("DecentLaM"), network)
        if round.lr == 0:  # a warm-up from 0: there is no step to learn from
            return
        momentum = state.rows["momentum"].mul_(self.beta).add_(mixed.neg_().add_(X), alpha=1 / round.lr)
        round.X_prime.copy_(X.sub_(momentum, alpha=round.lr))
