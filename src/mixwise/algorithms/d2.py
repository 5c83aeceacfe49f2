"""D² in its exact-diffusion form: correct for what the last step already did (Tang et al. 2018, Yuan et al. 2019).

    ψ = X′ (the optimizer's step);  φ = ψ + X − ψ_prev;  X⁺ = Wᵀ φ        (first step: φ = ψ)

Written with ψ, the learning rate never appears, so the method stays exact when it changes.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, one_matrix
from mixwise.algorithms.stability import check_roots
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan


class D2(Algorithm):
    """Exact diffusion; every W it mixes with is checked for stability first."""

    needs_previous = True
    mixes_steps = False
    needs_symmetric = True
    needs_lazy = True

    def check_weights(self, W: MixingMatrix) -> None:
        """Doubly stochastic and stable."""
        super().check_weights(W)
        check_d2_stability(W)

    def update(self, X: torch.Tensor, X_prime: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """X − φ: what is mixed is φ, not the optimizer's step."""
        return torch.sub(self.state.get("psi", X), X_prime, out=out)

    def rows_to_mix(self, X: torch.Tensor, X_prime: torch.Tensor) -> torch.Tensor:
        """φ."""
        return X + X_prime - self.state["psi"] if "psi" in self.state else X_prime

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Correct, then mix."""
        W = one_matrix(plan, "D²")
        phi = self.state["psi"].neg_().add_(X).add_(X_prime) if "psi" in self.state else X_prime.clone()
        self.state["psi"] = X_prime.clone()
        return network.mix(phi, W, out=phi)


def check_d2_stability(W: MixingMatrix) -> None:
    """Refuse a W with a root of z² − 2λz + λ outside of the unit disc for an eigenvalue λ ≠ 1.

    For symmetric W this says λ_min > −1/3.
    """
    rule = (
        "z² − 2λz + λ, which must lie inside the unit disc (symmetric W: eigenvalues above −1/3); "
        "take lazy(symmetrized(W))"
    )
    check_roots(W, lambda value: -2 * value, lambda value: value, "D²", rule)
