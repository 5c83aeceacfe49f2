"""CHOCO-SGD: gossip with compressed messages (Koloskova et al. 2019).

    q = Q(X′ − X̂);  X̂⁺ = X̂ + q;  X⁺ = X′ + γ (Wᵀ X̂⁺ − X̂⁺)

X̂ are the public copies that neighbors know; only q travels. Wᵀ X̂ is kept up to date from what arrives, S⁺ = S + Wᵀ q,
which requires the same W at every mixing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.algorithms.compressors import Compressor, TopK
from mixwise.parts import Share, part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


@part(
    "choco", title="CHOCO-SGD", cite="Koloskova et al. 2019",
    step="X⁺ = X′ + γ(WᵀX̂ − X̂)", mixes="Q(X′ − X̂)", sends="deg · compressed d", condition="doubly stochastic, fixed",
)  # fmt: skip
@dataclass(frozen=True)
class Choco(Algorithm):
    """Compressed gossip.

    Args:
        compressor: Q.
        gamma: γ, the consensus step size.
    """

    needs = Needs(fixed=True)

    compressor: Compressor = TopK(0.1)
    gamma: Share = 0.1

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with X̂ = 0."""
        rows = {"public": torch.zeros_like(X), "mixed": torch.zeros_like(X)}
        return State(rows, shared={"t": 0}, scratch={"seed": context.at("compressor").seed})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Send what the public copies lack, and move towards those of the neighbors."""
        W, public, mixed = plan.one_matrix("CHOCO"), state.rows["public"], state.rows["mixed"]
        lacking = round.X_prime - public
        packing = self.compressor(lacking, network.nodes, state.shared["t"], state.scratch["seed"])
        q = packing.rows
        public.add_(q)
        mixed.add_(network.mix(q, W, out=q, packing=packing))
        state.shared["t"] += 1
        round.X_prime.add_(mixed - public, alpha=self.gamma)
