"""Diffusion in other orders than D-SGD's: mix before the step, or during it.

combine, then adapt:      Y = Wᵀ X;  X⁺ = Y − U(Y)
combine while adapting:   X⁺ = Wᵀ X − U(X)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.dsgd import mix_in_place
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


@part(
    "combine-then-adapt", title="combine-then-adapt", cite="Cattivelli and Sayed 2010",
    step="X⁺ = WᵀX − U(WᵀX)", mixes="X",
)  # fmt: skip
@dataclass(frozen=True)
class CombineThenAdapt(Algorithm):
    """Y⁺ = Wᵀ X⁺ with X⁺ = Y − U; the models are X (Cattivelli and Sayed 2010).

    The rows of the run are Y, where the gradients are taken, so that an iteration starts with the optimizer as in
    D-SGD; the models are the rows before the mixing. All nodes start at the same point, which mixing does not change.
    """

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


@part(
    "combine-while-adapt", title="combine-while-adapt", cite="Nedić and Ozdaglar 2009",
    step="X⁺ = W₋ᵀX − U, W₋ made one mixing before", mixes="X, during the gradients",
)  # fmt: skip
@dataclass(frozen=True)
class CombineWhileAdapt(Algorithm):
    """X⁺ = Wᵀ X − U: the rows travel while the gradients are computed (Nedić and Ozdaglar 2009); U is not mixed.

    W must be known before the gradients are, so mixing t uses the weights that the policy made after step t − 1. The
    first mixing has W = I: all rows are equal then, and mixing them would change nothing. Inside quasi-global momentum
    it mixes after the step, with the weights of that step.
    """

    needs = Needs(previous=True, early=True)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the old rows and take the step."""
        X, first, *others = round.before, *plan.one_channel("combine-while-adapt")
        mixed: torch.Tensor = mix_in_place(network.mix(X, first), others, network)
        round.X_prime.sub_(X).add_(mixed)  # X′ − X is −U
