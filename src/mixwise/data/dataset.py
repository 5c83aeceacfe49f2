"""Datasets: inputs, labels, and the split into training and test data.

Legend: x (N, …), y labels (N,) int64 or float targets (N, …), N samples. Inputs in memory are float32, except images,
which stay uint8 as published, a quarter of the memory: a byte v means v / 255, and `normalized` and `averaged_down`
return float32. Inputs that are read on demand are `Samples`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.partition import IntArray, label_counts
from mixwise.errors import DataError, kind_of
from mixwise.seeding import numpy_generator

Indices: TypeAlias = npt.ArrayLike | torch.Tensor
Request: TypeAlias = tuple[torch.Tensor, int | None]  # the arguments of `Samples.take`


class Samples(Protocol):
    """The inputs of N samples, read on demand.

    A class that inherits from this one needs `kind`, `__len__`, `take` and `subset`.
    """

    @property
    def kind(self) -> str:
        """A description of one sample; training and test data must have the same."""

    def __len__(self) -> int: ...

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """Return the inputs at these positions as one batch (b, …) on the CPU.

        Args:
            indices: int64 (b,), in any order.
            draws: the seed of random augmentation, for training; None returns the samples as evaluation sees them.
        """

    def subset(self, indices: torch.Tensor) -> Samples:
        """Return the samples at these positions, in this order, without reading them."""

    def stream(self, requests: Iterable[Request]) -> Iterator[torch.Tensor]:
        """Yield the batch of each request, in order; an implementation may read ahead in other processes."""
        for indices, draws in requests:
            yield self.take(indices, draws)


class IndexedSamples(Samples):
    """Samples of a source that is shared by all subsets, at the positions `index` in it.

    Args:
        count: the number of samples in the source.
    """

    def __init__(self, count: int) -> None:
        self.index = torch.arange(count)

    def __len__(self) -> int:
        return len(self.index)

    def subset(self, indices: torch.Tensor) -> Self:
        """Return the samples at these positions, in this order."""
        part = copy.copy(self)
        part.index = self.index[indices]
        return part


@dataclass(frozen=True, eq=False)
class Dataset:
    """N samples with their labels, or with targets that are numbers.

    Args:
        x: inputs (N, …), or `Samples` that are read on demand.
        y: labels (N,), int64, each in 0 … classes − 1; or targets (N, …) of a floating-point type.
        classes: the number of labels, whether or not all of them occur; 0 for targets.
        name: for messages and reports.
        class_names: the meaning of the labels, if known.
    """

    x: torch.Tensor | Samples
    y: torch.Tensor
    classes: int = 0
    name: str = "data"
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape: tuple[object, ...] = tuple(self.x.shape) if isinstance(self.x, torch.Tensor) else (len(self.x), "…")
        labels = self.y.ndim == 1 and self.y.dtype == torch.int64
        fits = labels or (self.classes == 0 and self.y.is_floating_point())
        if not fits or self.y.ndim < 1 or len(shape) < 1 or shape[0] != len(self.y):
            found = f"x {shape}, y {tuple(self.y.shape)} of {self.y.dtype}"
            rule = "expected (N, …) and labels (N,) of torch.int64, or float targets (N, …) without classes"
            raise DataError(f"{self.name}: {found}; {rule}")
        if len(self.y) == 0:
            raise DataError(f"{self.name}: no samples; a dataset has at least one")
        if not labels:
            return
        if self.classes == 0:
            raise DataError(f"{self.name}: labels without classes; give their number: classes={int(self.y.max()) + 1}")
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.classes:
            rule = f"expected 0 to {self.classes - 1}; renumber them and leave out unlabeled samples"
            raise DataError(f"{self.name}: labels range from {low} to {high}, {rule}")
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(f"{self.name}: {len(self.class_names)} names for {self.classes} classes; give one for each")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def kind(self) -> str:
        """A description of one sample."""
        x = self.x
        sample = f"{tuple(x.shape[1:])} of {x.dtype}" if isinstance(x, torch.Tensor) else x.kind
        return f"{sample} with " + (f"{self.classes} classes" if self.classes else f"targets {tuple(self.y.shape[1:])}")

    @property
    def tensor(self) -> torch.Tensor:
        """All inputs as one tensor, if they are in memory."""
        if not isinstance(self.x, torch.Tensor):
            raise DataError(f"{self.name} ({self.x.kind}) is read on demand; this operation needs all inputs in memory")
        return self.x

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all samples in order, as evaluation sees them: (b, …) and (b,), b = `size` except for the last."""
        inputs: Iterable[torch.Tensor]
        if isinstance(self.x, torch.Tensor):
            inputs = torch.split(self.x, size)
        else:
            inputs = self.x.stream((at, None) for at in torch.split(torch.arange(len(self)), size))
        yield from zip(inputs, torch.split(self.y, size), strict=True)

    def subset(self, indices: Indices) -> Dataset:
        """Return a copy of the samples at these positions, in this order."""
        at = torch.as_tensor(indices, device=self.y.device)
        if at.ndim != 1 or at.dtype.is_floating_point or at.dtype.is_complex or at.dtype == torch.bool:
            raise DataError(f"indices of shape {tuple(at.shape)} and {at.dtype}; expected whole numbers, one axis")
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise DataError(f"indices from {int(at.min())} to {int(at.max())}; {self.name} has 0 to {len(self) - 1}")
        at = at.long()
        x = self.x[at] if isinstance(self.x, torch.Tensor) else self.x.subset(at.cpu())
        return replace(self, x=x, y=self.y[at])

    def label_counts(self, parts: Iterable[npt.ArrayLike]) -> IntArray:
        """Count each label on each node, (n, classes); `parts` is a Partition or lists of indices."""
        return label_counts(self.y, parts, self.classes)

    def to(self, device: torch.device | str) -> Dataset:
        """Move the samples to a device; inputs that are read on demand stay where they are."""
        x = self.x.to(device) if isinstance(self.x, torch.Tensor) else self.x
        return replace(self, x=x, y=self.y.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """The training data and the test data."""

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        if self.train.kind != self.test.kind:
            raise DataError(f"training data: {self.train.kind}, test data: {self.test.kind}; the two must match")

    def map(self, transform: Callable[[Dataset], Dataset]) -> Splits:
        """Transform both parts, e.g. `cifar10().map(lambda part: averaged_down(part, 2))`."""
        return Splits(transform(self.train), transform(self.test))


def holdout(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Set aside a random `share` of the samples; returns (rest, validation), both in their original order."""
    if not isinstance(dataset, Dataset):
        raise DataError(f"dataset is {kind_of(dataset)}; convert it: mixwise.data.from_torch(dataset)")
    size = round(share * len(dataset)) if 0 < share < 1 else 0
    if not 0 < size < len(dataset):
        raise DataError(f"share = {share} of {len(dataset)} samples; it must leave at least one sample on either side")
    aside = np.zeros(len(dataset), dtype=bool)
    aside[numpy_generator(seed, "holdout").permutation(len(dataset))[:size]] = True
    return dataset.subset(np.flatnonzero(~aside)), dataset.subset(np.flatnonzero(aside))


def drawn(total: int, count: int | None, option: str, where: str) -> list[int]:
    """Draw `count` of the positions 0 … total − 1, in order; the same for all seeds of a run, to prepare them once."""
    if count is None:
        return list(range(total))
    if not 1 <= count <= total:
        raise DataError(f"{option} = {count}; {where} has {total} samples: give a number from 1 to {total}")
    return sorted(numpy_generator(0, "drawn").permutation(total)[:count].tolist())


def from_torch(dataset: torch.utils.data.Dataset[Any], classes: int | None = None, name: str | None = None) -> Dataset:
    """Read a torch `Dataset` of (tensor, label) or (tensor, target) items into memory.

    Args:
        dataset: has a length; all its tensors have the same shape. Targets are floats, labels whole numbers.
        classes: by default the largest label plus one.
        name: by default the name of its type.
    """
    name = type(dataset).__name__ if name is None else name
    if not isinstance(dataset, Sized) or len(dataset) == 0:
        raise DataError(f"{name} has no length, or no samples; give a map-style dataset, not a stream")
    try:
        items = [dataset[i] for i in range(len(dataset))]
        if isinstance(items[0], torch.Tensor):  # its two rows would pass for an input and a target
            raise TypeError("items are tensors")
        x = torch.stack([x for x, _ in items])
        if torch.as_tensor(items[0][1]).is_floating_point():
            if classes is not None:
                raise ValueError(f"classes = {classes}, but the targets are floats")
            targets = [torch.as_tensor(target, dtype=torch.float32) for _, target in items]
            return Dataset(x, torch.stack(targets), name=name)
        y = torch.tensor([index(label) for _, label in items])
    except (TypeError, ValueError, RuntimeError) as error:
        rule = "expected pairs of a tensor, all of one shape, and a label or target: convert them in its transform"
        raise DataError(f"{name}: {error}; {rule}") from None
    return Dataset(x, y, int(y.max()) + 1 if classes is None else classes, name)
