"""Residual networks for images (He et al. 2015), without BatchNorm, whose statistics differ between nodes.

Legend: images (N, channels, H, W), features (N, C, h, w), logits (N, classes).

Every branch ends in a scale that starts at 0, so that a block is initially relu(shortcut(x)), whatever the
normalization. The EvoNorm authors do the same; for GroupNorm it is the rule of Goyal et al. (2017); without
normalization it is SkipInit (De & Smith 2020), and with scales of 1 that network hardly learns at the paper's learning
rate. Convolutions start from He's normal distribution, N(0, 2 / fan_out), their biases from 0; the last layer has
torch's initialization.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad, relu

from mixwise.errors import ConfigError, unknown
from mixwise.models.norms import NORMS, Norm, NormLayers
from mixwise.parts import Count, part


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
