"""Methods with full averaging, as yardsticks: they need every node to reach every other.

All-reduce SGD averages the gradients before every step; local SGD averages the parameters after τ local steps
(periodic averaging, Stich 2019).
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm
from mixwise.errors import TrainingError
from mixwise.network import Network
from mixwise.policies import Plan
from mixwise.policies.plan import Gives


class AllReduceSGD(Algorithm):
    """G ← 𝟏 ḡᵀ before the optimizer: one model, the same on all nodes."""

    mixes_with: Gives = "nothing"

    def check_optimizer(self, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
        """Averaging happens at every step."""
        if local_steps > 1:
            raise TrainingError(
                f"all-reduce SGD averages gradients at every step, so local_steps = {local_steps} has no meaning; "
                f"for averaging after local steps take algorithm: local-sgd"
            )

    def direction(self, G: torch.Tensor, network: Network) -> None:
        """The mean gradient on every node."""
        G.copy_(network.average(G).expand_as(G))

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Nothing is left to mix."""
        return X_prime

    def mix_buffers(self, B: torch.Tensor, plan: Plan, network: Network) -> None:
        """The mean on every node."""
        B.copy_(network.average(B).expand_as(B))


class LocalSGD(Algorithm):
    """X⁺ = 𝟏 x̄′ᵀ: local steps, then all nodes start again from their mean."""

    mixes_with: Gives = "nothing"

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """The mean on every node."""
        return X_prime.copy_(network.average(X_prime).expand_as(X_prime))

    def mix_buffers(self, B: torch.Tensor, plan: Plan, network: Network) -> None:
        """The mean on every node."""
        B.copy_(network.average(B).expand_as(B))
