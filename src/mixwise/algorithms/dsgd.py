"""Decentralized SGD: step, then mix. With a heterogeneity-aware policy it is HA-DSGD (paper, Algorithms 1 and 2)."""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds, one_channel
from mixwise.network import Network
from mixwise.policies import Plan


class DSGD(Algorithm):
    """X⁺ = Wᵀ X′ = Wᵀ (X − U): adapt, then combine."""

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix the stepped parameters."""
        return mix_rounds(X_prime, one_channel(plan, "D-SGD"), network, in_place=True)
