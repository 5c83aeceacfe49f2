"""Decentralized SGD: step, then mix. With a heterogeneity-aware policy it is HA-DSGD (paper, Algorithms 1 and 2)."""

from __future__ import annotations

import torch

from mixwise.algorithms.base import mix_rounds
from mixwise.errors import TrainingError
from mixwise.network import Network
from mixwise.policies import Plan


class DSGD:
    """X⁺ = Wᵀ X′ = Wᵀ (X − U)."""

    needs_previous = False

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    def combine(self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network) -> torch.Tensor:
        """Mix the stepped parameters."""
        if plan.updates is not None:
            raise TrainingError("D-SGD mixes one thing; a policy with a second channel needs algorithm: decoupled")
        return mix_rounds(X_prime, plan.params, network)
