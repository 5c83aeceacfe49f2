"""Combine-then-adapt diffusion: mix, then step from the mixed point (Cattivelli and Sayed 2010).

    Y = Wᵀ X;  X⁺ = Y − U(Y)

The rows of the run are Y, where the gradients are taken, so that an iteration starts with the optimizer as in D-SGD;
the models are the rows before the mixing. All nodes start at the same point, which mixing does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.rounds import mix_in_place
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Network, Plan, Round, State


@part(
    "combine-then-adapt", title="combine-then-adapt", cite="Cattivelli and Sayed 2010",
    step="X⁺ = WᵀX − U(WᵀX)", mixes="X", rounds=1, sends="deg · d", condition="doubly stochastic",
)  # fmt: skip
@dataclass(frozen=True)
class CombineThenAdapt(Algorithm):
    """Y⁺ = Wᵀ X⁺ with X⁺ = Y − U; the models are X."""

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with X = Y."""
        return State(rows={"adapted": X.clone()})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Keep the stepped rows as models, and mix."""
        state.rows["adapted"].copy_(round.X_prime)
        mix_in_place(round.X_prime, plan.one_channel("combine-then-adapt"), network)

    def models(self, X: torch.Tensor, state: State) -> torch.Tensor:
        """Return the rows before they were mixed."""
        return state.rows["adapted"]
