"""Data sets in memory: inputs, labels, and a part for training beside a part for testing.

Legend: x (N, …), y (N,) int64, N samples. Inputs are float32, except images, which stay uint8 as published, a quarter
of the memory; a byte v there means v / 255, and `normalized` and `averaged_down` make that float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.partition import IntArray, label_counts
from mixwise.errors import DataError
from mixwise.seeding import numpy_generator

Indices: TypeAlias = npt.ArrayLike | torch.Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """N labeled samples.

    Args:
        x: inputs (N, …).
        y: labels (N,), int64, each in 0 … classes − 1.
        classes: how many labels there are, whether or not all of them occur.
        name: for messages and reports.
    """

    x: torch.Tensor
    y: torch.Tensor
    classes: int
    name: str = "data"

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or self.y.dtype != torch.int64 or self.x.ndim < 1 or len(self.x) != len(self.y):
            raise DataError(
                f"{self.name}: x has shape {tuple(self.x.shape)}, y {tuple(self.y.shape)} of {self.y.dtype}; "
                f"expected (N, …) and (N,) of torch.int64"
            )
        if len(self.y) == 0:
            raise DataError(f"{self.name}: no samples; a data set has at least one")
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.classes:
            raise DataError(
                f"{self.name}: labels run from {low} to {high}, expected 0 to {self.classes - 1}; "
                f"renumber them and leave unlabeled samples out"
            )

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, indices: Indices) -> Dataset:
        """The samples at these positions, in this order, copied."""
        at = torch.as_tensor(indices, device=self.y.device)
        if at.ndim != 1 or at.dtype.is_floating_point or at.dtype.is_complex or at.dtype == torch.bool:
            raise DataError(f"indices of shape {tuple(at.shape)} and {at.dtype}; expected whole numbers, one axis")
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise DataError(f"indices from {int(at.min())} to {int(at.max())}; {self.name} has 0 to {len(self) - 1}")
        return Dataset(self.x[at.long()], self.y[at.long()], self.classes, self.name)

    def label_counts(self, parts: Iterable[npt.ArrayLike]) -> IntArray:
        """How often each label occurs on each node, (n, classes); `parts` is a Partition or lists of indices."""
        return label_counts(self.y, parts, self.classes)

    def to(self, device: torch.device | str) -> Dataset:
        """The same samples on another device."""
        return Dataset(self.x.to(device), self.y.to(device), self.classes, self.name)


@dataclass(frozen=True, eq=False)
class Splits:
    """What is trained on, and what the result is tested on."""

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        train, test = (_kind(part) for part in (self.train, self.test))
        if train != test:
            raise DataError(f"training data are {train}, test data {test}; both must be of one kind")

    def map(self, transform: Callable[[Dataset], Dataset]) -> Splits:
        """Both parts transformed alike, e.g. `cifar10().map(lambda part: averaged_down(part, 2))`."""
        return Splits(transform(self.train), transform(self.test))


def holdout(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """(rest, validation): a random `share` of the samples set aside, both in the order they had."""
    size = round(share * len(dataset)) if 0 < share < 1 else 0
    if not 0 < size < len(dataset):
        raise DataError(
            f"share = {share} of the {len(dataset)} samples of {dataset.name}; "
            f"it must lie between 0 and 1 and leave at least one sample on either side"
        )
    aside = np.zeros(len(dataset), dtype=bool)
    aside[numpy_generator(seed, "holdout").permutation(len(dataset))[:size]] = True
    return dataset.subset(np.flatnonzero(~aside)), dataset.subset(np.flatnonzero(aside))


def from_torch(dataset: torch.utils.data.Dataset[Any], classes: int | None = None, name: str | None = None) -> Dataset:
    """A torch `Dataset` of (tensor, label) items, read once and stacked.

    Args:
        dataset: has a length; all its tensors have one shape and dtype.
        classes: the largest label plus one if not given.
        name: the name of its type if not given.
    """
    name = type(dataset).__name__ if name is None else name
    if not isinstance(dataset, Sized):
        raise DataError(f"{name} has no length; give a data set whose items can be counted, not a stream")
    if len(dataset) == 0:
        raise DataError(f"{name}: no samples; a data set has at least one")
    items = [_checked_item(dataset[i], f"item {i} of {name}") for i in range(len(dataset))]
    first = items[0][0]
    for i, (x, _) in enumerate(items):
        if x.shape != first.shape or x.dtype != first.dtype:
            raise DataError(
                f"item {i} of {name} has shape {tuple(x.shape)} and {x.dtype}, item 0 {tuple(first.shape)} and "
                f"{first.dtype}; all items must be alike: resize or pad them in the data set's transform"
            )
    y = torch.tensor([label for _, label in items], dtype=torch.int64)
    return Dataset(torch.stack([x for x, _ in items]), y, int(y.max()) + 1 if classes is None else classes, name)


def _checked_item(item: Any, what: str) -> tuple[torch.Tensor, int]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{what} is of type {type(item).__name__}; expected a pair (tensor, label)")
    x, label = item
    if not isinstance(x, torch.Tensor):
        raise DataError(f"{what} holds a {type(x).__name__}; expected a tensor: convert it in the data set's transform")
    try:
        whole = int(label)
        exact = bool(whole == label)
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise DataError(f"{what} has the label {label!r}; expected a whole number")
    return x, whole


def _kind(dataset: Dataset) -> str:
    return f"{tuple(dataset.x.shape[1:])} of {dataset.x.dtype} with {dataset.classes} classes"
