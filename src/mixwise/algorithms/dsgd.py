"""Decentralized SGD: step, then mix (Lian et al. 2017). With a heterogeneity-aware policy it is HA-DSGD.

Two methods mix in another order, before the step or during it:

    combine, then adapt:      Y = Wᵀ X;  X⁺ = Y − U(Y)
    combine while adapting:   X⁺ = Wᵀ X − U(X)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


def mix_in_place(rows: torch.Tensor, rounds: Sequence[MixingMatrix], network: Network) -> torch.Tensor:
    """Mix rows with one matrix after the other, in place."""
    for W in rounds:
        network.mix(rows, W, out=rows)
    return rows


@part("dsgd", title="D-SGD", cite="Lian et al. 2017; with GME weights: HA-DSGD", step="X⁺ = WᵀX′")
@dataclass(frozen=True)
class DSGD(Algorithm):
    """Adapt, then combine: X⁺ = Wᵀ X′ = Wᵀ (X − U)."""

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the stepped parameters."""
        mix_in_place(round.X_prime, plan.one_channel("D-SGD"), network)


@part("dadam", title="D-Adam", cite="Nazari et al. 2019", step="X⁺ = WᵀX′ after Adam")
@dataclass(frozen=True)
class DAdam(DSGD):
    """Adam on every node, gossip on the parameters (Nazari et al. 2019); the baseline of the paper's Table 3.

    X⁺ = Wᵀ X′ with X′ the step of Adam or AdamW.
    """

    needs = Needs(optimizer="adam")


@part(
    "decoupled", title="decoupled D-SGD", cite="the paper, Algorithm 4",
    step="X⁺ = W_pᵀX − W_gᵀU", mixes="X and U", rounds=2, sends="2 deg · d", condition="doubly stochastic, both",
)  # fmt: skip
@dataclass(frozen=True)
class DecoupledDSGD(Algorithm):
    """D-SGD with one matrix for the parameters and one for the updates (paper, Algorithm 4).

    X⁺ = W_pᵀ X − W_gᵀ U, in two communication rounds.
    """

    needs = Needs(plan="two channels", previous=True)

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix parameters and updates separately."""
        if plan.updates is None:
            raise TrainingError("decoupled mixing needs a policy with two channels: Decoupled(params=…, updates=…)")
        X = round.before
        U = mix_in_place(X - round.X_prime, plan.updates, network)
        round.X_prime.copy_(mix_in_place(X, plan.params, network).sub_(U))


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
