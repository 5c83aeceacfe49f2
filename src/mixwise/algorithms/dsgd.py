"""Decentralized SGD: step, then mix. With a heterogeneity-aware policy it is HA-DSGD (paper, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

from mixwise.algorithms.rounds import mix_in_place
from mixwise.parts import part
from mixwise.protocols import Algorithm, Network, Plan, Round, State


@part(
    "dsgd", title="D-SGD", cite="Lian et al. 2017; with GME weights: HA-DSGD",
    step="X⁺ = WᵀX′", mixes="X′", rounds=1, sends="deg · d", condition="doubly stochastic",
)  # fmt: skip
@dataclass(frozen=True)
class DSGD(Algorithm):
    """Adapt, then combine: X⁺ = Wᵀ X′ = Wᵀ (X − U)."""

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the stepped parameters."""
        mix_in_place(round.X_prime, plan.one_channel("D-SGD"), network)
