"""D² in its exact-diffusion form: correct for what the last step already did (Tang et al. 2018, Yuan et al. 2019).

    ψ = X′ (the optimizer's step);  φ = ψ + X − ψ_prev;  X⁺ = Wᵀ φ        (first step: φ = ψ)

Written with ψ, the learning rate never appears, so the method stays exact when it changes.
"""

from __future__ import annotations

import numpy as np
import torch

from mixwise.algorithms.base import Algorithm, one_matrix
from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix, eigenvalues
from mixwise.network import Network
from mixwise.policies import Plan


class D2(Algorithm):
    """Exact diffusion; every W it mixes with is checked for stability first."""

    needs_previous = True
    needs_symmetric = True
    needs_lazy = True

    def check_weights(self, W: MixingMatrix) -> None:
        """Doubly stochastic and stable."""
        super().check_weights(W)
        check_d2_stability(W)

    def update(self, X: torch.Tensor, X_prime: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """X − φ: what is mixed is φ, not the optimizer's step."""
        return torch.sub(self.state.get("psi", X), X_prime, out=out)

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Correct, then mix."""
        W = one_matrix(plan, "D²")
        phi = X_prime.clone() if not self.state else self.state["psi"].neg_().add_(X).add_(X_prime)
        self.state["psi"] = X_prime.clone()
        return network.mix(phi, W, out=phi)


def check_d2_stability(W: MixingMatrix) -> None:
    """Refuse a W with a root of z² − 2λz + λ outside of the unit disc for an eigenvalue λ ≠ 1.

    For symmetric W this says λ_min > −1/3.
    """
    values = eigenvalues(W)
    others = values[np.abs(values - 1) > 1e-9]
    if others.size == 0:
        return
    root = np.sqrt(others.astype(complex) ** 2 - others)
    worst = np.maximum(np.abs(others + root), np.abs(others - root))
    if worst.max() >= 1 - 1e-12:
        value = others[int(worst.argmax())]
        raise MixingError(
            f"D² is not stable with this W: its eigenvalue {value:.4g} gives a root of modulus {worst.max():.4g} of "
            f"z² − 2λz + λ, which must lie inside the unit disc (symmetric W: eigenvalues above −1/3); "
            f"take lazy(symmetrized(W))"
        )
