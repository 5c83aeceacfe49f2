"""D-SGD with decoupled mixing: one matrix for the parameters, one for the updates (paper, Algorithm 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mixwise.algorithms.rounds import mix_in_place
from mixwise.errors import TrainingError
from mixwise.parts import part
from mixwise.protocols import Algorithm, Needs, Network, Plan, Round, State


@part(
    "decoupled", title="decoupled D-SGD", cite="the paper, Algorithm 4",
    step="X⁺ = W_pᵀX − W_gᵀU", mixes="X and U", rounds=2, sends="2 deg · d", condition="doubly stochastic, both",
)  # fmt: skip
@dataclass(frozen=True)
class DecoupledDSGD(Algorithm):
    """X⁺ = W_pᵀ X − W_gᵀ U, in two communication rounds."""

    needs: ClassVar[Needs] = Needs(plan="two channels", previous=True)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix parameters and updates separately."""
        if plan.updates is None:
            raise TrainingError("decoupled mixing needs a policy with two channels: Decoupled(params=…, updates=…)")
        X = round.before
        U = mix_in_place(X - round.X_prime, plan.updates, network)
        round.X_prime.copy_(mix_in_place(X, plan.params, network).sub_(U))
