"""Losses and metrics of a batch: functions of outputs (b, …) and targets (b, …), averaged over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from mixwise.errors import TrainingError

Metric: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | float]


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The share of samples whose largest output is that of their label."""
    return (outputs.argmax(1) == labels).double().mean()


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean of (output − target)², for outputs and targets of the same shape."""
    if outputs.shape != targets.shape:  # torch would broadcast (b, 1) and (b,) to (b, b)
        shapes = f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)}"
        raise TrainingError(f"{shapes}; they must have the same shape: reshape the targets, or squeeze the outputs")
    return nn.functional.mse_loss(outputs, targets)
