"""Exact first-order methods, whose nodes agree on the optimum although their data differ: D² and EXTRA.

Both are two-step recursions. They are stable if all roots of a polynomial z² + b(λ) z + c(λ) lie inside the unit disc
for every eigenvalue λ ≠ 1 of W; this is checked before W is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixwise.algorithms.dsgd import mix_in_place
from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix, eigenvalues
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State

Values = npt.NDArray[Any]


def check_roots(
    W: MixingMatrix, b: Callable[[Values], Values], c: Callable[[Values], Values], name: str, rule: str
) -> None:
    """Reject a W with a root outside of the unit disc for an eigenvalue λ ≠ 1.

    Args:
        W: the matrix.
        b, c: coefficients of the method's characteristic polynomial at an eigenvalue, as the step size goes to 0.
        name: of the method, for the message.
        rule: what must hold and what to do, for the message.
    """
    values = eigenvalues(W)
    others = values[np.abs(values - 1) > 1e-9].astype(complex)
    if others.size == 0:
        return
    half, product = -b(others) / 2, c(others)
    root = np.sqrt(half**2 - product)
    worst = np.maximum(np.abs(half + root), np.abs(half - root))
    if worst.max() >= 1 - 1e-12:
        value = others[int(worst.argmax())]
        value = value.real if value.imag == 0 else value
        raise MixingError(
            f"{name} is not stable with this W: its eigenvalue {value:.4g} gives a root of modulus "
            f"{worst.max():.4g} of {rule}"
        )


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
    step="X⁺ = Wᵀ(X′ + X − X′_prev)", mixes="X′ corrected", condition="symmetric, eigenvalues above −1/3",
)  # fmt: skip
@dataclass(frozen=True)
class D2(Algorithm):
    """D² in its exact-diffusion form: correct for what the last step did (Tang et al. 2018, Yuan et al. 2019).

    ψ = X′ (the optimizer's step);  φ = ψ + X − ψ_prev;  X⁺ = Wᵀ φ        (ψ_prev = X before the first step)

    Written with ψ, the learning rate never appears, so the method stays exact when it changes.
    """

    needs = Needs(previous=True, own_update=True, symmetric=True, lazy=True, stable=check_d2_stability)

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
        rounds = plan.symmetric_rounds("D²")
        phi = state.rows["psi"].neg_().add_(round.before).add_(round.X_prime)
        state.rows["psi"] = round.X_prime.clone()
        round.X_prime.copy_(mix_in_place(phi, rounds, network))


def check_extra_stability(W: MixingMatrix) -> None:
    """Reject a W with a root of z² − (1 + λ)z + (1 + λ)/2 outside of the unit disc for an eigenvalue λ ≠ 1."""
    rule = "z² − (1 + λ)z + (1 + λ)/2, which must lie inside the unit disc; use symmetrized(W)"
    check_roots(W, lambda value: -(1 + value), lambda value: (1 + value) / 2, "EXTRA", rule)


@part(
    "extra", title="EXTRA", cite="Shi et al. 2015",
    step="X⁺ = WᵀX − U + D, D⁺ = D + (WᵀX − X)/2", mixes="X", condition="symmetric",
)  # fmt: skip
@dataclass(frozen=True)
class EXTRA(Algorithm):
    """D-SGD with a memory D that cancels the nodes' disagreement at the optimum (Shi et al. 2015).

    X⁺ = Wᵀ X − U + D;  D⁺ = D + (Wᵀ X − X) / 2         (D = 0 at first)

    This is x⁺ = W x − α∇f + Σ (W − W̃) x over all earlier iterates, with W̃ = (I + W)/2, the sum kept in D; equal to the
    two-step form x_{k+2} = (I + W) x_{k+1} − W̃ x_k − α (∇f(x_{k+1}) − ∇f(x_k)). At the optimum D = α∇f, so D is
    rescaled when the learning rate changes. One mixing of X per step, and one tensor of memory.
    """

    needs = Needs(previous=True, symmetric=True, stable=check_extra_stability)

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with D = 0; 0 stands for a learning rate that is not known yet."""
        return State(rows={"D": torch.zeros_like(X)}, shared={"lr": 0.0})

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return X: the step is not mixed."""
        return round.before

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix X, take the step, and correct it."""
        rounds, X = plan.symmetric_rounds("EXTRA"), round.before
        D, last = state.rows["D"], state.shared["lr"]
        if round.lr != last and last > 0:
            D.mul_(round.lr / last)
        state.shared["lr"] = round.lr
        mixed = mix_in_place(X.clone(), rounds, network)
        round.X_prime.sub_(X).add_(mixed).add_(D)
        D.add_(mixed.sub_(X), alpha=0.5)
