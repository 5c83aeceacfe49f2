"""What is done to a whole data set once, before training. Bytes v become v / 255, and everything comes out float32.

Legend: x (N, C, …), N samples of C channels. The work is done on the host, piece by piece in serial NumPy: a large data
set exists in float32 once and in float64 never, and a machine whose cores are taken does not slow it down tenfold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float32]

_PIECE = 256  # samples


def averaged_down(dataset: Dataset, factor: int) -> Dataset:
    """Images (N, C, H, W) shrunk to (N, C, H / factor, W / factor): each pixel the mean of factor × factor pixels."""
    shape = tuple(dataset.tensor.shape)
    if len(shape) != 4 or factor < 1 or shape[2] % factor or shape[3] % factor:
        raise DataError(
            f"factor = {factor} for {dataset.name} of shape {shape}; it takes images (N, C, H, W) and a factor "
            f"that divides H and W"
        )

    def means(x: FloatArray) -> FloatArray:
        corners = [x[:, :, i::factor, j::factor] for i in range(factor) for j in range(factor)]
        return sum(corners[1:], corners[0]) / np.float32(factor**2)

    return _mapped(dataset, means, (*shape[:2], shape[2] // factor, shape[3] // factor))


def normalized(splits: Splits) -> Splits:
    """Both parts as (x − mean) / std, by the training part's mean and standard deviation of each channel.

    Inputs without further axes, (N, d), are normalized feature by feature. What never varies becomes 0.
    """
    if splits.train.tensor.ndim < 2:
        raise DataError(
            f"{splits.train.name} has shape {tuple(splits.train.tensor.shape)}; expected (N, C, …) or (N, d)"
        )
    mean, std = channel_moments(splits.train.tensor)
    return splits.map(lambda part: _mapped(part, lambda x: (x - mean) / std, tuple(part.tensor.shape)))


def channel_moments(x: torch.Tensor) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each channel, (C, 1, …); 1 stands for a deviation of 0."""
    axes = (0, *range(2, x.ndim))
    count = x.numel() // x.shape[1]

    def mean_of(f: Callable[[Array], Array]) -> Array:
        sums = [f(piece.astype(np.float64)).sum(axes, keepdims=True) for piece in _pieces(x)]
        mean: Array = np.sum(sums, axis=0) / count
        return mean

    mean = mean_of(lambda piece: piece)
    std = np.sqrt(mean_of(lambda piece: (piece - mean) ** 2))
    varies = std > 1e-7 * np.abs(mean)  # below, it is the rounding of a constant
    return mean[0].astype(np.float32), np.where(varies, std, 1.0)[0].astype(np.float32)


def _mapped(dataset: Dataset, f: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]) -> Dataset:
    x = np.empty(shape, np.float32)
    for number, piece in enumerate(_pieces(dataset.tensor)):
        x[number * _PIECE : (number + 1) * _PIECE] = f(piece)
    return replace(dataset, x=torch.from_numpy(x).to(dataset.tensor.device))


def _pieces(x: torch.Tensor) -> Iterator[FloatArray]:
    scale = np.float32(255 if x.dtype == torch.uint8 else 1)
    for start in range(0, len(x), _PIECE):
        yield x[start : start + _PIECE].cpu().numpy().astype(np.float32) / scale
