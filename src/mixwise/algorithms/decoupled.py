"""D-SGD with decoupled mixing: one matrix for the parameters, one for the updates (paper, Algorithm 4)."""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds
from mixwise.errors import TrainingError
from mixwise.network import Network
from mixwise.policies import Plan
from mixwise.policies.plan import Gives


class DecoupledDSGD(Algorithm):
    """X⁺ = W_pᵀ X − W_gᵀ U, in two communication rounds."""

    mixes_with: Gives = "two channels"
    needs_previous = True

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix parameters and updates apart."""
        if plan.updates is None:
            raise TrainingError("decoupled mixing needs a policy with two channels: Decoupled(params=…, updates=…)")
        U = mix_rounds(X - X_prime, plan.updates, network, in_place=True)
        return mix_rounds(X, plan.params, network, in_place=True) - U
