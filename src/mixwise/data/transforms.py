"""Transformations: of a whole dataset, before training; and random ones of a batch of images, for augmentation.

Legend: x (N, C, …), N samples of C channels; images (B, C, H, W), any dtype and device.

A dataset is transformed on the host, in chunks and in serial NumPy: a large one exists in float32 once and in float64
never, and a busy machine does not slow it down tenfold. Bytes v become v / 255, and all results are float32.

A batch is transformed on its device. The generator may be on the CPU whatever that is: its draws are moved there, so
that one seed gives the same images on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float32]

_CHUNK = 256  # samples


def averaged_down(dataset: Dataset, factor: int) -> Dataset:
    """Downsample images (N, C, H, W) to (N, C, H / factor, W / factor): each pixel is a mean of factor × factor."""
    shape = tuple(dataset.tensor.shape)
    if len(shape) != 4 or factor < 1 or shape[2] % factor or shape[3] % factor:
        raise DataError(f"factor = {factor} for {dataset.name} {shape}; it must divide H and W of images (N, C, H, W)")

    def means(x: FloatArray) -> FloatArray:
        corners = [x[:, :, i::factor, j::factor] for i in range(factor) for j in range(factor)]
        return sum(corners[1:], corners[0]) / np.float32(factor**2)

    return _mapped(dataset, means, (*shape[:2], shape[2] // factor, shape[3] // factor))


def normalized(splits: Splits) -> Splits:
    """Transform both parts to (x − mean) / std, with the training part's mean and standard deviation per channel.

    Inputs without further axes, (N, d), are normalized per feature. A constant channel becomes 0.
    """
    x = splits.train.tensor
    if x.ndim < 2:
        raise DataError(f"{splits.train.name} has shape {tuple(x.shape)}; expected (N, C, …) or (N, d)")
    mean, std = channel_moments(x)
    return splits.map(lambda part: _mapped(part, lambda x: (x - mean) / std, tuple(part.tensor.shape)))


def channel_moments(x: torch.Tensor) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of each channel, (C, 1, …); 1 in place of a deviation of 0."""
    axes = (0, *range(2, x.ndim))
    count = x.numel() // x.shape[1]

    def mean_of(f: Callable[[Array], Array]) -> Array:
        sums = [f(chunk.astype(np.float64)).sum(axes, keepdims=True) for chunk in _chunks(x)]
        mean: Array = np.sum(sums, axis=0) / count
        return mean

    mean = mean_of(lambda chunk: chunk)
    std = np.sqrt(mean_of(lambda chunk: (chunk - mean) ** 2))
    varies = std > 1e-7 * np.abs(mean)  # below, it is the rounding of a constant
    return mean[0].astype(np.float32), np.where(varies, std, 1.0)[0].astype(np.float32)


def _mapped(dataset: Dataset, f: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]) -> Dataset:
    x = np.empty(shape, np.float32)
    for number, chunk in enumerate(_chunks(dataset.tensor)):
        x[number * _CHUNK : (number + 1) * _CHUNK] = f(chunk)
    return replace(dataset, x=torch.from_numpy(x).to(dataset.tensor.device))


def _chunks(x: torch.Tensor) -> Iterator[FloatArray]:
    scale = np.float32(255 if x.dtype == torch.uint8 else 1)
    for start in range(0, len(x), _CHUNK):
        yield x[start : start + _CHUNK].cpu().numpy().astype(np.float32) / scale


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
    B, _, H, W = images.shape
    top, left = torch.randint(2 * padding + 1, (2, B), generator=generator, device=generator.device).to(images.device)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    windows = padded.unfold(2, H, 1).unfold(3, W, 1)  # (B, C, 2 padding + 1, 2 padding + 1, H, W), every crop as a view
    return windows[torch.arange(B, device=images.device), :, top, left]


def _check_images(images: torch.Tensor) -> None:
    if images.ndim != 4:
        raise DataError(f"a batch of shape {tuple(images.shape)}; flips and crops take images (B, C, H, W)")
