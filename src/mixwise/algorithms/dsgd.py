"""Decentralized SGD: step, then mix. With a heterogeneity-aware policy it is HA-DSGD (paper, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

from mixwise.algorithms.rounds import mix_in_place
from mixwise.plan import Plan
from mixwise.protocols import Algorithm, Network
from mixwise.round import Round
from mixwise.state import State


@dataclass(frozen=True)
class DSGD(Algorithm):
    """Adapt, then combine: X⁺ = Wᵀ X′ = Wᵀ (X − U)."""

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the stepped parameters."""
        mix_in_place(round.X_prime, plan.one_channel("D-SGD"), network)
