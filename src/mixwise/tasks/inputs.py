"""The batches of the nodes as a module takes them: gathered, augmented, in the precision of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from mixwise.data import Dataset, NodeBatches, Partition
from mixwise.seeding import generator, stream

Augment: TypeAlias = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class Inputs:
    """What every node sees at every step; a function of the seed, the node and the step.

    Args:
        data: the whole training set.
        partition: which samples each node holds.
        batch: samples per node and step, b.
        augment: changes a batch of inputs at random; `Samples` know themselves what to change.
        device, dtype: where and in what precision the batches are.
        seed: names the order of the data and the augmentation.
    """

    def __init__(
        self,
        data: Dataset,
        partition: Partition,
        batch: int,
        augment: Augment | None,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self._indices = NodeBatches(partition, batch, seed)
        self._data, self.device = data.to(device), device
        self._y = self._data.y
        self.augment, self.dtype, self.seed = augment, dtype, seed

    def one(self, node: int, step: int) -> Batch:
        """The batch of one node, (b, …) and (b,)."""
        index, samples = self._indices(node, step), self._data.x
        if isinstance(samples, torch.Tensor):
            x = self._augmented(samples.index_select(0, index.to(self.device)), node, step)
        else:
            x = samples.take(index, self._draws(node, step)).to(self.device)
            samples.expect(self._indices(node, step + 1), self._draws(node, step + 1))
        return self.as_input(x), self._y[index.to(self.device)]

    def all(self, nodes: Sequence[int], step: int) -> Batch:
        """The batches of several nodes, (m, b, …) and (m, b), of inputs in memory."""
        inputs = self._data.tensor
        index = torch.stack([self._indices(node, step) for node in nodes]).to(self.device)
        x = inputs.index_select(0, index.reshape(-1)).view(*index.shape, *inputs.shape[1:])
        if self.augment is not None:
            x = torch.stack([self._augmented(part, node, step) for part, node in zip(x, nodes, strict=True)])
        return self.as_input(x), self._y[index]

    def as_input(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers in the precision of the rows; a byte v of an image means v / 255; whole numbers (tokens) stay."""
        if x.dtype == torch.uint8:
            return x.to(self.dtype) / 255
        return x.to(self.dtype) if x.is_floating_point() else x

    def _augmented(self, x: torch.Tensor, node: int, step: int) -> torch.Tensor:
        return x if self.augment is None else self.augment(x, generator(self.seed, "augment", node, step))

    def _draws(self, node: int, step: int) -> int:
        return stream(self.seed, "augment", node, step)
