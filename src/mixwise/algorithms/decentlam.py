"""DecentLaM: momentum on the whole movement of a D-SGD step, mixing included (Yuan et al. 2021).

    g̃ = (X − Wᵀ(X − η g)) / η;  m⁺ = β m + g̃;  X⁺ = X − η m⁺

Momentum on g alone multiplies the bias that heterogeneous data cause by 1 / (1 − β)²; this one does not.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds, one_channel
from mixwise.errors import TrainingError
from mixwise.network import Network
from mixwise.policies import Plan


class DecentLaM(Algorithm):
    """Momentum after the mixing; β = `beta`."""

    needs_previous = True
    owns_momentum = True

    def __init__(self, beta: float = 0.9) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise TrainingError(f"beta = {beta}; the weight of the momentum lies in [0, 1)")
        self.beta = beta

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix, and take the whole movement as the gradient."""
        mixed = mix_rounds(X_prime, one_channel(plan, "DecentLaM"), network, in_place=True)
        if lr == 0:  # a warm-up from 0: there is no step to learn from
            return mixed
        if "momentum" not in self.state:
            self.state["momentum"] = torch.zeros_like(X)
        momentum = self.state["momentum"].mul_(self.beta).add_(mixed.neg_().add_(X), alpha=1 / lr)
        return X.sub_(momentum, alpha=lr)
