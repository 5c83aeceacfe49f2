"""EXTRA: D-SGD with a memory that cancels the nodes' disagreement at the optimum (Shi et al. 2015).

    X⁺ = Wᵀ X − U + D;  D⁺ = D + (Wᵀ X − X) / 2         (D = 0 at first)

This is x⁺ = W x − α∇f + Σ (W − W̃) x over all earlier iterates, with W̃ = (I + W)/2, the sum kept in D; equal to the
two-step form x_{k+2} = (I + W) x_{k+1} − W̃ x_k − α (∇f(x_{k+1}) − ∇f(x_k)). At the optimum D = α∇f, so D is rescaled
when the learning rate changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mixwise.algorithms.stability import check_roots
from mixwise.mixing import MixingMatrix
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


def check_extra_stability(W: MixingMatrix) -> None:
    """Reject a W with a root of z² − (1 + λ)z + (1 + λ)/2 outside of the unit disc for an eigenvalue λ ≠ 1."""
    rule = "z² − (1 + λ)z + (1 + λ)/2, which must lie inside the unit disc; use symmetrized(W)"
    check_roots(W, lambda value: -(1 + value), lambda value: (1 + value) / 2, "EXTRA", rule)


@part(
    "extra", title="EXTRA", cite="Shi et al. 2015",
    step="X⁺ = WᵀX − U + D, D⁺ = D + (WᵀX − X)/2", mixes="X", rounds=1, sends="deg · d", condition="symmetric",
)  # fmt: skip
@dataclass(frozen=True)
class EXTRA(Algorithm):
    """An exact first-order method with one mixing of X per step and one tensor of memory."""

    needs: ClassVar[Needs] = Needs(previous=True, symmetric=True, stable=check_extra_stability)

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with D = 0; 0 stands for a learning rate that is not known yet."""
        return State(rows={"D": torch.zeros_like(X)}, shared={"lr": 0.0})

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return X: the step is not mixed."""
        return round.before

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix X, take the step, and correct it."""
        W, X = plan.one_matrix("EXTRA"), round.before
        D, last = state.rows["D"], state.shared["lr"]
        if round.lr != last and last > 0:
            D.mul_(round.lr / last)
        state.shared["lr"] = round.lr
        mixed = network.mix(X, W)
        round.X_prime.sub_(X).add_(mixed).add_(D)
        D.add_(mixed.sub_(X), alpha=0.5)
