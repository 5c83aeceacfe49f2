"""Momentum tracking: every node follows the mean momentum by mixing its estimate of it (Takezawa et al. 2022).

M = β M + G;  Y = M + C (the tracked momentum, C = 0 at first);  X⁺ = Wᵀ X′ with X′ = X − ηY;  C⁺ = C − Y + Wᵀ Y
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.gradient_tracking import GradientTracking
from mixwise.parts import Unit, part
from mixwise.protocols import Context, Needs, Network, State


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
