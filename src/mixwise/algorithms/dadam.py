"""DAdam: Adam on every node, gossip on the parameters (Nazari et al. 2019); the baseline of the paper's Table 3."""

from __future__ import annotations

import torch

from mixwise.algorithms.dsgd import DSGD
from mixwise.errors import TrainingError


class DAdam(DSGD):
    """X⁺ = Wᵀ X′ with X′ the step of Adam or AdamW."""

    def check_optimizer(self, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
        """Adam it must be."""
        if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            raise TrainingError(
                f"DAdam with {type(optimizer).__name__} is not DAdam; take Adam or AdamW, or algorithm: dsgd"
            )
