"""Tracking: every node follows the mean gradient, or the mean momentum, by mixing its estimate of it.

    Y = G + C (the tracked gradient, C = 0 at first);  X⁺ = Wᵀ X′ with X′ the optimizer's step along Y
    C⁺ = C − Ȳ + Wᵀ Ȳ,  Ȳ the mean of Y over the local steps

With one local step this is y_{t+1} = W y_t + g_{t+1} − g_t (Di Lorenzo and Scutari 2016); with several it is K-GT
(Liu et al. 2023). The mean of C is 0 at all times, so the mean of Y is the mean gradient.

Momentum tracking has M⁺ = β M + G in the place of G (Takezawa et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.dsgd import mix_in_place
from mixwise.parts import Unit, part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


@part(
    "gradient-tracking", title="gradient tracking",
    cite="Di Lorenzo and Scutari 2016; local steps: Liu et al. 2023",
    step="X⁺ = WᵀX′ along Y, Y⁺ = WᵀY + G⁺ − G", mixes="X′ and Y", rounds=2, sends="2 deg · d",
)  # fmt: skip
@dataclass(frozen=True)
class GradientTracking(Algorithm):
    """Mixes parameters and tracked gradients: twice the bytes of D-SGD."""

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with C = 0; Y is a sum over the local steps so far."""
        return State(rows={"C": torch.zeros_like(X), "Y": torch.zeros_like(X)}, shared={"steps": 0})

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Follow the tracked gradient in place of the node's own."""
        G.add_(state.rows["C"])
        state.rows["Y"].add_(G)
        state.shared["steps"] += 1

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix the tracked gradients and the parameters."""
        rounds = plan.one_channel("gradient tracking")
        C, Y = state.rows["C"], state.rows["Y"]
        Y.div_(state.shared["steps"])
        C.sub_(Y).add_(mix_in_place(Y, rounds, network))
        Y.zero_()
        state.shared["steps"] = 0
        mix_in_place(round.X_prime, rounds, network)


@part(
    "momentum-tracking", title="momentum tracking", cite="Takezawa et al. 2022",
    step="X⁺ = WᵀX′ along Y, Y⁺ = WᵀY + M⁺ − M", mixes="X′ and Y", rounds=2, sends="2 deg · d",
    note="It has its own momentum: the optimizer is SGD without one",
)  # fmt: skip
@dataclass(frozen=True)
class MomentumTracking(GradientTracking):
    """Tracks the mean of the momentum M = β M + G in place of that of the gradient.

    With a fixed W this is gradient tracking with SGD momentum, since M and Y are linear filters of G and commute:
    (1 − βB)⁻¹ and (1 − WᵀB)⁻¹ (1 − B), B the step back. With weights that change the two differ.

    Args:
        beta: β.
        nesterov: whether to look ahead, G + β M in place of M.
    """

    needs = Needs(optimizer="sgd", own_momentum=True)

    beta: Unit = 0.9
    nesterov: bool = False

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with M = 0 as well."""
        state = super().init(X, context)
        state.rows["M"] = torch.zeros_like(X)
        return state

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Follow the tracked momentum."""
        M = state.rows["M"].mul_(self.beta).add_(G)
        if self.nesterov:
            G.add_(M, alpha=self.beta)
        else:
            G.copy_(M)
        super().direction(G, state, network)
