"""The network of the fixed small benchmark (recipe `cifar10-small`): a change here changes its results."""

from __future__ import annotations

from torch import nn

from mixwise.models.factory import Expect, checked_size
from mixwise.parts import part


@part("small-cnn", "model", title="small CNN")
def small_cnn(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Three 3×3 convolutions with GroupNorm and ReLU and a linear layer, for 16×16 images; 19,626 parameters.

    Shapes of a sample: (3, 16, 16), (16, 16, 16), (32, 8, 8), (32, 4, 4), 512, 10. Layers start as torch has them.

    Args:
        classes: how many logits.
        channels: of the images.
    """
    channels, classes = checked_size("channels", channels), checked_size("classes", classes)
    return nn.Sequential(
        Expect(channels, 16, 16),
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
