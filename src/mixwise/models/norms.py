"""The normalizations of the residual networks, by name.

A residual network needs two kinds: `activated` layers, which end in a nonlinearity, and `linear` ones, at the end of a
branch or of a projection, before the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn

from mixwise.errors import ConfigError
from mixwise.models.evonorm import EvoNormS0, largest_divisor, per_channel

Norm: TypeAlias = Literal["evonorm", "group", "none"]


class ScaleShift(nn.Module):
    """y = γ x + β with one γ and one β per channel: EvoNorm without the nonlinearity."""

    def __init__(self, channels: int, scale: float = 1.0) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels,), scale))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return y, of the shape of x (N, C, *)."""
        return per_channel(self.gamma, x) * x + per_channel(self.beta, x)


def group_norm(channels: int, scale: float = 1.0) -> nn.GroupNorm:
    """GroupNorm with groups of four channels, or more channels if there would be over 32 groups (Wu & He, 2018)."""
    layer = nn.GroupNorm(largest_divisor(channels, limit=min(32, max(1, channels // 4))), channels)
    nn.init.constant_(layer.weight, scale)
    return layer


@dataclass(frozen=True)
class NormLayers:
    """A normalization: its layers for C channels, and whether the convolution before an activation needs a bias."""

    activated: Callable[[int], nn.Module]
    linear: Callable[[int, float], nn.Module]  # (channels, initial scale)
    conv_bias: bool = False


NORMS: Mapping[str, NormLayers] = {
    "evonorm": NormLayers(activated=EvoNormS0, linear=ScaleShift),  # as in the EvoNorm authors' ResNet
    "group": NormLayers(lambda channels: nn.Sequential(group_norm(channels), nn.ReLU()), linear=group_norm),
    "none": NormLayers(lambda channels: nn.ReLU(), linear=ScaleShift, conv_bias=True),  # SkipInit, one γ per channel
}


def norm_layers(norm: str) -> NormLayers:
    """Return the layers of a normalization by its name."""
    if norm not in NORMS:
        raise ConfigError(f"norm = {norm!r}; choose one of {', '.join(NORMS)}")
    return NORMS[norm]
