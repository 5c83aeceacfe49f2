"""Gradient tracking: every node follows the mean gradient by mixing its estimate of it (Di Lorenzo and Scutari 2016).

    Y = G + C (the tracked gradient, C = 0 at first);  X⁺ = Wᵀ X′ with X′ the optimizer's step along Y
    C⁺ = C − Ȳ + Wᵀ Ȳ,  Ȳ the mean of Y over the local steps

With one local step this is y_{t+1} = W y_t + g_{t+1} − g_t; with several it is K-GT (Liu et al. 2023). The mean of C is
0 at all times, so the mean of Y is the mean gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixwise.algorithms.base import Algorithm, Belongs, mix_rounds, one_channel
from mixwise.network import Network
from mixwise.policies import Plan


class GradientTracking(Algorithm):
    """Mixes parameters and tracked gradients: twice the bytes of D-SGD."""

    belongs: Mapping[str, Belongs] = {"steps": "all"}

    def direction(self, G: torch.Tensor, network: Network) -> None:
        """Follow the tracked gradient in place of the node's own."""
        if "C" not in self.state:
            self.state |= {
                "C": torch.zeros_like(G),
                "Y": torch.zeros_like(G),
                "steps": torch.zeros((), dtype=torch.int64),
            }
        G.add_(self.state["C"])
        self.state["Y"].add_(G)
        self.state["steps"] += 1

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix both."""
        rounds = one_channel(plan, "gradient tracking")
        C, Y, steps = self.state["C"], self.state["Y"], self.state["steps"]
        Y.div_(int(steps))
        C.sub_(Y)
        C.add_(mix_rounds(Y, rounds, network, in_place=True))
        Y.zero_()
        steps.zero_()
        return mix_rounds(X_prime, rounds, network, in_place=True)
