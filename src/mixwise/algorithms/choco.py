"""CHOCO-SGD: gossip with compressed messages (Koloskova et al. 2019).

    q = Q(X′ − X̂);  X̂⁺ = X̂ + q;  X⁺ = X′ + γ (Wᵀ X̂⁺ − X̂⁺)

X̂ are the public copies that neighbors know; only q travels. Wᵀ X̂ is kept up to date from what arrives, S⁺ = S + Wᵀ q,
which asks for the same W at every mixing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixwise.algorithms.base import Algorithm, Belongs, one_matrix
from mixwise.algorithms.compressors import Compressor, TopK
from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan, Policy

_SAME_WEIGHTS = (
    "CHOCO keeps sums over its neighbors' public copies, so the weights must stay the same: "
    "take one fixed matrix, such as metropolis-hastings"
)


class Choco(Algorithm):
    """Compressed gossip with the consensus step size γ = `gamma`."""

    belongs: Mapping[str, Belongs] = {"t": "all"}

    def __init__(self, compressor: Compressor | None = None, gamma: float = 0.1) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise TrainingError(f"gamma = {gamma}; the consensus step size lies in (0, 1]")
        self.compressor, self.gamma = TopK(0.1) if compressor is None else compressor, gamma
        self._W: MixingMatrix | None = None

    def check_policy(self, policy: Policy) -> None:
        """One matrix for all mixings."""
        super().check_policy(policy)
        if policy.changes:
            raise TrainingError(f"{type(policy).__name__} changes the weights while the run goes on; {_SAME_WEIGHTS}")

    def check_weights(self, W: MixingMatrix) -> None:
        """Doubly stochastic, and the same at every mixing."""
        super().check_weights(W)
        if self._W is not None and self._W != W:
            raise TrainingError(f"the weights are not those of the mixing before; {_SAME_WEIGHTS}")
        self._W = W

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Send what the public copies lack, and move towards those of the neighbors."""
        W = one_matrix(plan, "CHOCO")
        if "public" not in self.state:
            zeros, t = torch.zeros_like(X_prime), torch.zeros((), dtype=torch.int64)
            self.state |= {"public": zeros, "mixed": zeros.clone(), "t": t}
        public, mixed, t = self.state["public"], self.state["mixed"], self.state["t"]
        packing = self.compressor(X_prime - public, network.nodes, int(t))
        q = packing.rows
        public.add_(q)
        mixed.add_(network.mix(q, W, out=q, packing=packing))
        t += 1
        return X_prime.add_(mixed - public, alpha=self.gamma)
