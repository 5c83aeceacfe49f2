"""Combine while adapting: the rows travel while the gradients are computed (Nedić and Ozdaglar 2009).

    X⁺ = Wᵀ X − U

W must be known before the gradients are, so mixing t uses the weights that the policy made after step t − 1. The first
mixing has W = I: all rows are equal then, and mixing them would change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mixwise.algorithms.rounds import mix_in_place
from mixwise.parts import part
from mixwise.protocols import Algorithm, Needs, Network, Plan, Round, State


@part(
    "combine-while-adapt", title="combine-while-adapt", cite="Nedić and Ozdaglar 2009",
    step="X⁺ = W₋ᵀX − U, W₋ made one mixing before", mixes="X, during the gradients", rounds=1, sends="deg · d",
    condition="doubly stochastic",
)  # fmt: skip
@dataclass(frozen=True)
class CombineWhileAdapt(Algorithm):
    """X⁺ = Wᵀ X − U: mixing does not wait for the step, and the step is not mixed.

    Inside quasi-global momentum it mixes after the step, with the weights of that step.
    """

    needs: ClassVar[Needs] = Needs(previous=True, early=True)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the old rows and take the step."""
        X, first, *others = round.before, *plan.one_channel("combine-while-adapt")
        mixed: torch.Tensor = mix_in_place(network.mix(X, first), others, network)
        round.X_prime.sub_(X).add_(mixed)  # X′ − X is −U
