"""EXTRA: D-SGD with a memory that cancels the nodes' disagreement at the optimum (Shi et al. 2015).

    X⁺ = Wᵀ X − U + D;  D⁺ = D + (Wᵀ X − X) / 2         (D = 0 at first)

This is x⁺ = W x − α∇f + Σ (W − W̃) x over all earlier iterates, with W̃ = (I + W)/2, the sum kept in D; equal to the
two-step form x_{k+2} = (I + W) x_{k+1} − W̃ x_k − α (∇f(x_{k+1}) − ∇f(x_k)). At the optimum D = α∇f, so D follows the
learning rate when that changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixwise.algorithms.base import Algorithm, Belongs, one_matrix
from mixwise.algorithms.stability import check_roots
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan


class EXTRA(Algorithm):
    """Exact first-order method; one mixing of X per step, and one tensor of memory."""

    needs_previous = True
    needs_symmetric = True
    belongs: Mapping[str, Belongs] = {"lr": "all"}

    def check_weights(self, W: MixingMatrix) -> None:
        """Doubly stochastic and stable."""
        super().check_weights(W)
        rule = "z² − (1 + λ)z + (1 + λ)/2, which must lie inside the unit disc; take symmetrized(W)"
        check_roots(W, lambda value: -(1 + value), lambda value: (1 + value) / 2, "EXTRA", rule)

    def rows_to_mix(self, X: torch.Tensor, X_prime: torch.Tensor) -> torch.Tensor:
        """X: the step is not mixed."""
        return X

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix X, take the step, and correct it."""
        W = one_matrix(plan, "EXTRA")
        if "D" not in self.state:
            self.state["D"], self.state["lr"] = torch.zeros_like(X), torch.tensor(lr, dtype=torch.float64)
        D, last = self.state["D"], float(self.state["lr"])
        if lr != last and last > 0:
            D.mul_(lr / last)
        self.state["lr"].fill_(lr)
        mixed = network.mix(X, W)
        X_new = X_prime.sub_(X).add_(mixed).add_(D)
        D.add_(mixed.sub_(X), alpha=0.5)
        return X_new
