"""Combine-then-adapt diffusion: mix, then step from the mixed point (Cattivelli and Sayed 2010).

    Y = Wᵀ X;  X⁺ = Y − U(Y)

The rows of the run are Y, where the gradients are taken, so that an iteration starts with the optimizer as in D-SGD;
the models are the rows before the mixing. All nodes start at the same point, which mixing leaves where it is.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds, one_channel
from mixwise.network import Network
from mixwise.policies import Plan


class CombineThenAdapt(Algorithm):
    """Y⁺ = Wᵀ X⁺ with X⁺ = Y − U; the models are X."""

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Keep the stepped rows as models, and mix."""
        self.state["adapted"] = X_prime.clone()
        return mix_rounds(X_prime, one_channel(plan, "combine-then-adapt"), network, in_place=True)

    def model_rows(self, X: torch.Tensor) -> torch.Tensor:
        """The rows before they were mixed."""
        return self.state.get("adapted", X)
