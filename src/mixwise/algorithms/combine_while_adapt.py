"""Combine while adapting: the rows travel while the gradients are computed (Nedić and Ozdaglar 2009).

    X⁺ = Wᵀ X − U

W must be known before the gradients are, so the weights of mixing t are those that the policy made after step t − 1. At
the first mixing there are none yet, and W = I: all rows are the same then, and mixing them would change nothing.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm, mix_rounds, one_channel
from mixwise.network import Network
from mixwise.policies import Plan


class CombineWhileAdapt(Algorithm):
    """X⁺ = Wᵀ X − U: what is mixed does not wait for the step, and the step is not mixed.

    Around it, quasi-global momentum mixes after the step, with the weights of that step.
    """

    needs_previous = True
    mixes_early = True

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix the old rows and take the step."""
        mixed = mix_rounds(X, one_channel(plan, "combine-while-adapt"), network)
        return X_prime.sub_(X).add_(mixed)  # X′ − X is −U
