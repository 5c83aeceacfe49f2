"""Samples with several inputs: a dictionary or a tuple of tensors, as which the module gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from mixwise.data.dataset import IndexedSamples
from mixwise.errors import DataError

Change = Callable[[torch.Tensor], torch.Tensor]


class FieldBatch:
    """Several tensors (b, …) that are moved and split together, as one tensor would be."""

    def mapped(self, change: Change) -> Any:
        """Return the same structure of changed tensors."""
        raise NotImplementedError

    def tensors(self) -> Iterable[torch.Tensor]:
        """Return the tensors, in order."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Any:
        """Move all tensors."""
        return self.mapped(lambda tensor: tensor.to(device))

    def tensor_split(self, pieces: int) -> list[Any]:
        """Split all tensors along their first axis."""
        return [self.mapped(lambda tensor, i=i: tensor.tensor_split(pieces)[i]) for i in range(pieces)]  # type: ignore[misc]

    def numel(self) -> int:
        """Count the numbers of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors())


class DictBatch(FieldBatch, dict[str, torch.Tensor]):
    """A batch whose inputs have names."""

    def mapped(self, change: Change) -> DictBatch:
        """Return a dictionary of changed tensors."""
        return DictBatch({name: change(tensor) for name, tensor in self.items()})

    def tensors(self) -> Iterable[torch.Tensor]:
        """Return the tensors, in order."""
        return self.values()


class TupleBatch(FieldBatch, tuple[torch.Tensor, ...]):
    """A batch whose inputs have places."""

    def mapped(self, change: Change) -> TupleBatch:
        """Return a tuple of changed tensors."""
        return TupleBatch(change(tensor) for tensor in self)

    def tensors(self) -> Iterable[torch.Tensor]:
        """Return the tensors, in order."""
        return self


class Fields(IndexedSamples):
    """N samples with several inputs, in memory.

    Args:
        inputs: a dictionary or a tuple of tensors (N, …). A module gets a batch of them in the same form, as its one
            argument.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]) -> None:
        self.inputs = DictBatch(inputs) if isinstance(inputs, Mapping) else TupleBatch(inputs)
        sizes = [len(tensor) for tensor in self.inputs.tensors()]
        if len(set(sizes)) != 1:
            raise DataError(f"inputs of {sizes} samples; give tensors with one row for each sample")
        super().__init__(sizes[0])

    @property
    def kind(self) -> str:
        """The shapes of the inputs of one sample."""
        return " and ".join(f"{tuple(tensor.shape[1:])} of {tensor.dtype}" for tensor in self.inputs.tensors())

    def take(self, indices: torch.Tensor, draws: int | None = None) -> Any:
        """Return the inputs at these positions, in the form in which they were given."""
        return self.inputs.mapped(lambda tensor: tensor[self.index[indices]])
