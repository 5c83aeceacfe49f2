"""Push-sum, or stochastic gradient push: gossip on directed graphs where nobody can make columns sum to 1.

    numerators P = w X − U;  P⁺ = Wᵀ P;  w⁺ = Wᵀ w  (w = 1 at first);  X⁺ = P⁺ / w⁺         (Assran et al. 2019)

With `W.T @ P` mass is conserved when each row of W sums to 1: `kind="sender"`. The rows X = P / w are the models.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, one_channel
from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan


class PushSum(Algorithm):
    """SGP; one number per message more than D-SGD."""

    needs_previous = True

    def check_weights(self, W: MixingMatrix) -> None:
        """Rows that sum to 1 are enough, and every matrix has them."""

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Push numerators and weights, and divide."""
        if "mass" not in self.state:
            self.state["mass"] = torch.ones(len(X), 1, dtype=torch.float64, device=X.device)
        mass = self.state["mass"]
        # w X − U = w X − X + X′; exactly X′ where w = 1
        numerators = torch.addcmul(X_prime, X, (mass - 1).to(X.dtype))
        for W in one_channel(plan, "push-sum"):
            numerators, mass = network.mix(numerators, W, out=numerators), network.mix(mass, W)
        if not bool((mass > 0).all()):
            node = network.nodes[int((mass[:, 0] <= 0).nonzero()[0])]
            raise TrainingError(f"node {node} has pushed all of its mass away; keep a positive weight W[i, i]")
        self.state["mass"] = mass
        return numerators.div_(mass.to(X.dtype))

    def mix_buffers(self, B: torch.Tensor, plan: Plan, network: Network) -> None:
        """Pushed as the rows are: times the weight before, divided by the weight after."""
        mass = self.state.get("mass", torch.ones(len(B), 1, dtype=torch.float64, device=B.device))
        B.mul_(mass.to(B.dtype))
        for W in one_channel(plan, "push-sum"):
            B, mass = network.mix(B, W, out=B), network.mix(mass, W)
        B.div_(mass.to(B.dtype))
