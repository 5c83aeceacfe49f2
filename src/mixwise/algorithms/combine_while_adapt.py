"""Combine while adapting: the rows travel while the gradients are computed (Lian et al. 2017, Algorithm 1).

X⁺ = Wᵀ X − U
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds, one_channel
from mixwise.network import Network
from mixwise.policies import Plan


class CombineWhileAdapt(Algorithm):
    """X⁺ = Wᵀ X − U: what is mixed does not wait for the step, and the step is not mixed."""

    needs_previous = True

    def rows_to_mix(self, X: torch.Tensor, X_prime: torch.Tensor) -> torch.Tensor:
        """X: the step is not mixed."""
        return X

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix the old rows and take the step."""
        U = X - X_prime
        return mix_rounds(X, one_channel(plan, "combine-while-adapt"), network, in_place=True).sub_(U)
