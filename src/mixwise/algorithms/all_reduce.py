"""Methods with full averaging, as references: they need every node to reach every other.

All-reduce SGD averages the gradients before every step; local SGD averages the parameters after τ local steps
(periodic averaging, Stich 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.parts import part
from mixwise.protocols import Algorithm, Needs, Network, Plan, Round, State


@part(
    "all-reduce", title="all-reduce SGD", cite="a reference", reference=True,
    step="G ← mean of G", mixes="nothing by gossip", sends="2 (n − 1)/n · d", condition="no W",
)  # fmt: skip
@dataclass(frozen=True)
class AllReduceSGD(Algorithm):
    """G ← 𝟏 ḡᵀ before the optimizer: one model, the same on all nodes."""

    needs = Needs(plan="nothing", local_steps=False, buffers="average")

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Replace every gradient by the mean gradient."""
        G.copy_(network.average(G).expand_as(G))

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Do nothing: equal steps keep the models equal."""


@part(
    "local-sgd", title="local SGD", cite="Stich 2019; a reference", reference=True,
    step="X⁺ = mean of X′", mixes="nothing by gossip", sends="2 (n − 1)/n · d", condition="no W",
)  # fmt: skip
@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """X⁺ = 𝟏 x̄′ᵀ: local steps, after which all nodes continue from their mean."""

    needs = Needs(plan="nothing", buffers="average")

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Replace every row by the mean row."""
        round.X_prime.copy_(network.average(round.X_prime).expand_as(round.X_prime))
