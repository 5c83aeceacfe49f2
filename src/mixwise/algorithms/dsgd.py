"""Decentralized SGD: step, then mix. With a heterogeneity-aware policy it is HA-DSGD (paper, Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.parts import part
from mixwise.protocols import Algorithm, Needs, Network, Plan, Round, State


def mix_in_place(rows: torch.Tensor, rounds: Sequence[MixingMatrix], network: Network) -> torch.Tensor:
    """Mix rows with one matrix after the other, in place."""
    for W in rounds:
        network.mix(rows, W, out=rows)
    return rows


@part("dsgd", title="D-SGD", cite="Lian et al. 2017; with GME weights: HA-DSGD", step="X⁺ = WᵀX′")
@dataclass(frozen=True)
class DSGD(Algorithm):
    """Adapt, then combine: X⁺ = Wᵀ X′ = Wᵀ (X − U)."""

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the stepped parameters."""
        mix_in_place(round.X_prime, plan.one_channel("D-SGD"), network)


@part("dadam", title="D-Adam", cite="Nazari et al. 2019", step="X⁺ = WᵀX′ after Adam")
@dataclass(frozen=True)
class DAdam(DSGD):
    """Adam on every node, gossip on the parameters (Nazari et al. 2019); the baseline of the paper's Table 3.

    X⁺ = Wᵀ X′ with X′ the step of Adam or AdamW.
    """

    needs = Needs(optimizer="adam")


@part(
    "decoupled", title="decoupled D-SGD", cite="the paper, Algorithm 4",
    step="X⁺ = W_pᵀX − W_gᵀU", mixes="X and U", rounds=2, sends="2 deg · d", condition="doubly stochastic, both",
)  # fmt: skip
@dataclass(frozen=True)
class DecoupledDSGD(Algorithm):
    """D-SGD with one matrix for the parameters and one for the updates (paper, Algorithm 4).

    X⁺ = W_pᵀ X − W_gᵀ U, in two communication rounds.
    """

    needs = Needs(plan="two channels", previous=True)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix parameters and updates separately."""
        if plan.updates is None:
            raise TrainingError("decoupled mixing needs a policy with two channels: Decoupled(params=…, updates=…)")
        X = round.before
        U = mix_in_place(X - round.X_prime, plan.updates, network)
        round.X_prime.copy_(mix_in_place(X, plan.params, network).sub_(U))
