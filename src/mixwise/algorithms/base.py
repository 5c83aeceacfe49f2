"""The interface of an algorithm: what is computed and mixed, given the rows this process owns and a network.

Legend: X (m, d) parameters before the optimizer's step, X′ after it, U = X − X′ the update.
"""

from __future__ import annotations

from typing import Protocol

import torch

from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan


class Algorithm(Protocol):
    """Turns the optimizer's step into the step of the decentralized method."""

    needs_previous: bool  # whether `combine` looks at X, which costs a copy of the rows
    state: dict[str, torch.Tensor]  # rows that it remembers between steps, by name; all of them are checkpointed

    def combine(self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network) -> torch.Tensor:
        """The new parameters (m, d)."""
        ...


def mix_rounds(rows: torch.Tensor, rounds: tuple[MixingMatrix, ...], network: Network) -> torch.Tensor:
    """Mix with one matrix after the other, one communication round each; all of them keep the mean."""
    for W in rounds:
        if W.kind != "doubly":
            raise TrainingError(
                f'the weights have kind="{W.kind}", so mixing would move the mean of the nodes; '
                f"take doubly stochastic weights, or an algorithm that corrects for it"
            )
        rows = network.mix(rows, W)
    return rows
