"""Data sets: inputs, labels, and a part for training beside a part for testing.

Legend: x (N, …), y (N,) int64, N samples. Inputs in memory are float32, except images, which stay uint8 as published, a
quarter of the memory; a byte v there means v / 255, and `normalized` and `averaged_down` make that float32. Inputs that
are read when they are needed are `Samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.partition import IntArray, label_counts
from mixwise.data.samples import Samples
from mixwise.errors import DataError
from mixwise.seeding import numpy_generator

Indices: TypeAlias = npt.ArrayLike | torch.Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """N labeled samples.

    Args:
        x: inputs (N, …), or `Samples` that are read when they are needed.
        y: labels (N,), int64, each in 0 … classes − 1.
        classes: how many labels there are, whether or not all of them occur.
        name: for messages and reports.
        class_names: what the labels mean, if that is known.
    """

    x: torch.Tensor | Samples
    y: torch.Tensor
    classes: int
    name: str = "data"
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape: tuple[object, ...] = tuple(self.x.shape) if isinstance(self.x, torch.Tensor) else (len(self.x), "…")
        if self.y.ndim != 1 or self.y.dtype != torch.int64 or len(shape) < 1 or shape[0] != len(self.y):
            raise DataError(
                f"{self.name}: x has shape {shape}, y {tuple(self.y.shape)} of {self.y.dtype}; "
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
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(f"{self.name}: {len(self.class_names)} names for {self.classes} classes; give one for each")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def kind(self) -> str:
        """What one sample is, in words."""
        x = self.x
        sample = f"{tuple(x.shape[1:])} of {x.dtype}" if isinstance(x, torch.Tensor) else x.kind
        return f"{sample} with {self.classes} classes"

    @property
    def tensor(self) -> torch.Tensor:
        """All inputs as one tensor, if they are in memory."""
        if not isinstance(self.x, torch.Tensor):
            raise DataError(f"{self.name} ({self.x.kind}) is read piece by piece; what needs all of it does not work")
        return self.x

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All samples in order, as they are judged: (b, …) and (b,), b = `size` but for the last."""
        inputs: Iterable[torch.Tensor]
        if isinstance(self.x, torch.Tensor):
            inputs = torch.split(self.x, size)
        else:
            inputs = self.x.stream((at, None) for at in torch.split(torch.arange(len(self)), size))
        yield from zip(inputs, torch.split(self.y, size), strict=True)

    def subset(self, indices: Indices) -> Dataset:
        """The samples at these positions, in this order, copied."""
        at = torch.as_tensor(indices, device=self.y.device)
        if at.ndim != 1 or at.dtype.is_floating_point or at.dtype.is_complex or at.dtype == torch.bool:
            raise DataError(f"indices of shape {tuple(at.shape)} and {at.dtype}; expected whole numbers, one axis")
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise DataError(f"indices from {int(at.min())} to {int(at.max())}; {self.name} has 0 to {len(self) - 1}")
        at = at.long()
        x = self.x[at] if isinstance(self.x, torch.Tensor) else self.x.subset(at.cpu())
        return replace(self, x=x, y=self.y[at])

    def label_counts(self, parts: Iterable[npt.ArrayLike]) -> IntArray:
        """How often each label occurs on each node, (n, classes); `parts` is a Partition or lists of indices."""
        return label_counts(self.y, parts, self.classes)

    def to(self, device: torch.device | str) -> Dataset:
        """The same samples on another device; those that are read when they are needed stay where they are."""
        x = self.x.to(device) if isinstance(self.x, torch.Tensor) else self.x
        return replace(self, x=x, y=self.y.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """What is trained on, and what the result is tested on."""

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        train, test = (part.kind for part in (self.train, self.test))
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
