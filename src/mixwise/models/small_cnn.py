"""The network of the small benchmark, recipe `cifar10-small`, whose results depend on it: do not change it."""

from __future__ import annotations

from torch import nn

from mixwise.models.factory import Expect, checked_size
from mixwise.parts import part


@part("small-cnn", "model", title="small CNN")
def small_cnn(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Three 3×3 convolutions with GroupNorm and ReLU and a linear layer, for 16×16 images; 19,626 parameters.

    Shapes of a sample: (3, 16, 16), (16, 16, 16), (32, 8, 8), (32, 4, 4), 512, 10. Layers have torch's initialization.

    Args:
        classes: the number of logits.
        channels: of the images.
    """
    channels, classes = checked_size("channels", channels), checked_size("classes", classes)
    layers: list[nn.Module] = []
    for inputs, outputs, stride, groups in ((channels, 16, 1, 4), (16, 32, 2, 8), (32, 32, 2, 8)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.GroupNorm(groups, outputs), nn.ReLU()]
    return nn.Sequential(Expect(channels, 16, 16), *layers, nn.Flatten(), nn.Linear(512, classes))
