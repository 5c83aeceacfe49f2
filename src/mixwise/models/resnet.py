"""Residual networks for images (He et al. 2015), without BatchNorm, whose statistics differ between nodes; EvoNorm-S0.

Legend: images (N, channels, H, W), features x (N, C, h, w), logits (N, classes); v, γ, β (C,). The C channels of a
normalization form G groups of C / G neighbors.

Every branch ends in a scale that starts at 0, so that a block is initially relu(shortcut(x)), whatever the
normalization. The EvoNorm authors do the same; for GroupNorm it is the rule of Goyal et al. (2017); without
normalization it is SkipInit (De & Smith 2020), and with scales of 1 that network hardly learns at the paper's learning
rate. Convolutions start from He's normal distribution, N(0, 2 / fan_out), their biases from 0; the last layer has
torch's initialization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn.functional import pad, relu

from mixwise.errors import ConfigError, TrainingError, unknown
from mixwise.parts import Count, part

Norm: TypeAlias = Literal["evonorm", "group", "none"]


@part("resnet20", "model", title="ResNet-20")
def resnet20(classes: Count = 10, norm: Norm = "evonorm", channels: Count = 3) -> ResNet:
    """ResNet-20 for 32×32 images: three stages of three blocks with 16, 32 and 64 channels; 0.27 million parameters.

    Shortcuts have no parameters (He's option A: every other pixel, new channels 0), as in the published network for
    CIFAR-10, and therefore no normalization.

    Args:
        classes: the number of logits.
        norm: "evonorm" (EvoNorm-S0), "group" (GroupNorm and ReLU) or "none" (ReLU).
        channels: of the images.
    """
    stem = _conv_activated(channels, 16, _layers(norm), kernel=3, stride=1)
    return ResNet(stem, widths=(16, 32, 64), depth=3, project=False, layers=_layers(norm), classes=classes)


@part("resnet18", "model", title="ResNet-18")
def resnet18(
    classes: Count = 1000, norm: Norm = "evonorm", channels: Count = 3, width: Count = 64, small_images: bool = False
) -> ResNet:
    """ResNet-18 for 224×224 images: four stages of two blocks with 64 to 512 channels; 11.7 million parameters.

    Where the size changes, the shortcut is a 1×1 convolution (He's option B), as in the published network.

    Args:
        classes: the number of logits.
        norm: "evonorm" (EvoNorm-S0), "group" (GroupNorm and ReLU) or "none" (ReLU).
        channels: of the images.
        width: channels of the first stage, w; the others have 2w, 4w and 8w. 16 gives 0.7 million parameters.
        small_images: for images of about 32×32 pixels: begin with a 3×3 convolution instead of a 7×7 convolution and
            pooling, which keep a sixteenth of the pixels.
    """
    layers, w = _layers(norm), width
    large = _conv_activated(channels, w, layers, kernel=7, stride=2)  # always drawn: a seed keeps its parameters
    stem = nn.Sequential(large, nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    if small_images:
        stem = _conv_activated(channels, w, layers, kernel=3, stride=1)
    return ResNet(stem, widths=(w, 2 * w, 4 * w, 8 * w), depth=2, project=True, layers=layers, classes=classes)


class ResNet(nn.Module):
    """A stem, stages of `depth` basic blocks, the mean over all pixels, a linear layer.

    Every stage but the first halves the height and the width. Images may have any size.
    """

    def __init__(
        self, stem: nn.Module, widths: tuple[int, ...], depth: int, project: bool, layers: NormLayers, classes: int
    ) -> None:
        super().__init__()
        blocks, C = [], widths[0]
        for stage, width in enumerate(widths):
            for b in range(depth):
                stride = 2 if stage > 0 and b == 0 else 1
                blocks.append(BasicBlock(C, width, stride, project, layers))
                C = width
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(C, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, classes)."""
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """relu(shortcut(x) + branch(x)), where the branch is conv, norm and activation, conv, norm."""

    def __init__(self, inputs: int, outputs: int, stride: int, project: bool, layers: NormLayers) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv_activated(inputs, outputs, layers, kernel=3, stride=stride),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            layers.linear(outputs, 0.0),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (stride, inputs) != (1, outputs):
            self.shortcut = PaddedShortcut(stride, outputs - inputs)
            if project:
                conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.shortcut = nn.Sequential(conv, layers.linear(outputs, 1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, h, w) to (N, outputs, h / stride, w / stride)."""
        return relu(self.shortcut(x) + self.branch(x))


class PaddedShortcut(nn.Module):
    """A shortcut that keeps every stride-th pixel and adds channels of zeros: He's option A."""

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, new_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, C, h, w) to (N, C + new_channels, h / stride, w / stride)."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def _layers(norm: Norm) -> NormLayers:
    if norm not in NORMS:
        raise ConfigError(unknown("norm", norm, NORMS))
    return NORMS[norm]


def _conv_activated(inputs: int, outputs: int, layers: NormLayers, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=layers.conv_bias)
    return nn.Sequential(conv, layers.activated(outputs))


# --- normalization without statistics of a batch ---
class EvoNormS0(nn.Module):
    """y = x · sigmoid(v x) / group_std(x) · γ + β, in place of a normalization and the activation after it.

    It starts from v = γ = 1, β = 0, has no buffers, and is the same in training and evaluation.

    Args:
        channels: C.
        groups: at most this many groups. The layer takes the largest number that divides C, as the authors' code
            does: 16 and 32 channels get one group per channel, 64 get 32 groups of two, 48 get 24 of two.
        eps: added to the variance.

    Reference: Liu, Brock, Simonyan, Le, "Evolving normalization-activation layers", 2020.

    >>> EvoNormS0(16)
    EvoNormS0(16, groups=16, eps=1e-05)
    """

    def __init__(self, channels: int, groups: int = 32, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.groups, self.eps = channels, largest_divisor(channels, groups), eps
        self.v = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return y, of the shape of x."""
        if x.ndim < 2 or x.shape[1] != self.channels:  # one channel would broadcast silently
            raise TrainingError(f"an input of shape {tuple(x.shape)}; this layer takes (N, {self.channels}, …)")
        v, gamma, beta = (per_channel(p, x) for p in (self.v, self.gamma, self.beta))
        return x * torch.sigmoid(v * x) * (gamma / group_std(x, self.groups, self.eps)) + beta

    def extra_repr(self) -> str:
        """Return the arguments, with the number of groups in use."""
        return f"{self.channels}, groups={self.groups}, eps={self.eps}"


def group_std(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """Return √(Var[x] + eps) per sample and group, (N, C, 1, …), repeated for every channel of a group.

    The variance is the biased one, as in the authors' code: that of a group of one number is 0, not NaN.
    """
    N, C = x.shape[:2]
    members = x.reshape(N, groups, -1)
    # Not members.var(): on a CPU this is 1.3 times faster for the whole layer, forward and backward.
    var = (members - members.mean(dim=2, keepdim=True)).square().mean(dim=2)
    return (var + eps).sqrt().unsqueeze(2).expand(N, groups, C // groups).reshape(N, C, *(1,) * (x.ndim - 2))


def per_channel(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshape a parameter p (C,) to (C, 1, …), one number for each channel of x (N, C, *)."""
    return p.reshape(-1, *(1,) * (x.ndim - 2))


def largest_divisor(channels: int, limit: int) -> int:
    """Return the largest number of equal groups into which the channels can be split, up to `limit`."""
    if channels < 1 or limit < 1:
        raise ConfigError(f"{channels} channels in up to {limit} groups; both must be 1 or larger")
    return next(groups for groups in range(min(limit, channels), 0, -1) if channels % groups == 0)


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
    """The layers of a normalization for C channels.

    Attributes:
        activated: makes a layer that ends in a nonlinearity.
        linear: makes a layer for the end of a branch or of a projection, before the sum: (C, initial scale).
        conv_bias: whether the convolution before an activation needs a bias.
    """

    activated: Callable[[int], nn.Module]
    linear: Callable[[int, float], nn.Module]
    conv_bias: bool = False


NORMS: Mapping[str, NormLayers] = {
    "evonorm": NormLayers(activated=EvoNormS0, linear=ScaleShift),  # as in the EvoNorm authors' ResNet
    "group": NormLayers(lambda channels: nn.Sequential(group_norm(channels), nn.ReLU()), linear=group_norm),
    "none": NormLayers(lambda channels: nn.ReLU(), linear=ScaleShift, conv_bias=True),  # SkipInit, one γ per channel
}
