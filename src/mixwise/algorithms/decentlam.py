"""DecentLaM: momentum on the whole movement of a D-SGD step, mixing included (Yuan et al. 2021).

    g̃ = (X − Wᵀ(X − η g)) / η;  m⁺ = β m + g̃;  X⁺ = X − η m⁺

Momentum on g alone multiplies the bias caused by heterogeneous data by 1 / (1 − β)²; this momentum does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.dsgd import mix_in_place
from mixwise.parts import Unit, part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


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
