"""Random augmentation of images, a whole batch at once: flips and crops.

Legend: images (B, C, H, W), any dtype and device. The generator may be on the CPU whatever the device of the images:
its draws are moved there, so that one seed gives the same images on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.errors import DataError


@dataclass(frozen=True)
class FlipsAndCrops:
    """The usual augmentation of CIFAR-10: a random horizontal flip, then a random crop of the padded image."""

    padding: int = 4

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return augmented images (B, C, H, W)."""
        return random_crops(random_flips(images, generator), self.padding, generator)


def random_flips(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Flip each image horizontally with probability 1/2."""
    _check_images(images)
    # With an explicit dtype, since the default one would determine how many bits are drawn.
    flip = torch.rand(len(images), generator=generator, dtype=torch.float32, device=generator.device) < 0.5
    return torch.where(flip.to(images.device)[:, None, None, None], images.flip(3), images)


def random_crops(images: torch.Tensor, padding: int, generator: torch.Generator) -> torch.Tensor:
    """Shift each image by −padding … padding pixels along either axis, and fill the border with zeros.

    Zero is black in raw images and the mean color in normalized ones.
    """
    _check_images(images)
    if padding < 0:
        raise DataError(f"padding = {padding}; it must be 0 or more pixels")
    B, C, H, W = images.shape
    device = images.device
    corner = torch.randint(2 * padding + 1, (2, B), generator=generator, device=generator.device).to(device)
    rows = corner[0, :, None] + torch.arange(H, device=device)  # (B, H)
    columns = corner[1, :, None] + torch.arange(W, device=device)  # (B, W)
    sample, channel = torch.arange(B, device=device), torch.arange(C, device=device)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    return padded[
        sample[:, None, None, None], channel[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]


def _check_images(images: torch.Tensor) -> None:
    if images.ndim != 4:
        raise DataError(f"a batch of shape {tuple(images.shape)}; flips and crops take images (B, C, H, W)")
