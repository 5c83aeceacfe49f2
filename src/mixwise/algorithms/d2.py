"""D² in its exact-diffusion form: correct for what the last step already did (Tang et al. 2018, Yuan et al. 2019).

    ψ = X′ (the optimizer's step);  φ = ψ + X − ψ_prev;  X⁺ = Wᵀ φ        (ψ_prev = X before the first step)

Written with ψ, the learning rate never appears, so the method stays exact when it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mixwise.algorithms.stability import check_roots
from mixwise.mixing import MixingMatrix
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


def check_d2_stability(W: MixingMatrix) -> None:
    """Reject a W with a root of z² − 2λz + λ outside of the unit disc for an eigenvalue λ ≠ 1.

    For symmetric W this says λ_min > −1/3.
    """
    rule = (
        "z² − 2λz + λ, which must lie inside the unit disc (symmetric W: eigenvalues above −1/3); "
        "use lazy(symmetrized(W))"
    )
    check_roots(W, lambda value: -2 * value, lambda value: value, "D²", rule)


@part(
    "d2", title="D²", cite="Tang et al. 2018; Yuan et al. 2019",
    step="X⁺ = Wᵀ(X′ + X − X′_prev)", mixes="X′ corrected", rounds=1, sends="deg · d",
    condition="symmetric, eigenvalues above −1/3",
)  # fmt: skip
@dataclass(frozen=True)
class D2(Algorithm):
    """Exact diffusion; the stability of every W is checked before it is used."""

    needs: ClassVar[Needs] = Needs(previous=True, own_update=True, symmetric=True, lazy=True, stable=check_d2_stability)

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with ψ_prev = X."""
        return State(rows={"psi": X.clone()})

    def update(self, round: Round, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ψ_prev and X′: X − φ = ψ_prev − X′, since φ is mixed, not the optimizer's step."""
        return state.rows["psi"], round.X_prime

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return φ = (X − ψ_prev) + X′."""
        return (round.before - state.rows["psi"]).add_(round.X_prime)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Correct, then mix."""
        W = plan.one_matrix("D²")
        phi = state.rows["psi"].neg_().add_(round.before).add_(round.X_prime)
        state.rows["psi"] = round.X_prime.clone()
        network.mix(phi, W, out=round.X_prime)
