"""The batches of the nodes as a module takes them: gathered, augmented, in the precision of the rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from mixwise.data import Dataset, NodeBatches, Partition
from mixwise.data.dataset import Request
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
        self._stream: Iterator[torch.Tensor] = iter(())
        self._upcoming: tuple[list[int], int] | None = None  # the nodes and the step that the stream yields next

    def one(self, node: int, step: int) -> Batch:
        """The batch of one node, (b, …) and (b,)."""
        index, samples = self._indices(node, step), self._data.x
        if isinstance(samples, torch.Tensor):
            x = self._augmented(samples.index_select(0, index.to(self.device)), node, step)
        else:
            x = samples.take(index, _draws(self.seed, node, step)).to(self.device)
        return self.as_input(x), self._y[index.to(self.device)]

    def each(self, nodes: Sequence[int], step: int) -> Iterator[Batch]:
        """Yield the batches of several nodes, one after the other; `Samples` may read those of later steps ahead."""
        samples = self._data.x
        if isinstance(samples, torch.Tensor):
            yield from (self.one(node, step) for node in nodes)
            return
        if self._upcoming != (list(nodes), step):
            self._stream = samples.stream(_requests(self._indices, self.seed, list(nodes), step))
        self._upcoming = None
        for node, x in zip(nodes, self._stream, strict=False):
            yield self.as_input(x.to(self.device)), self._y[self._indices(node, step).to(self.device)]
        self._upcoming = list(nodes), step + 1

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


def _requests(indices: NodeBatches, seed: int, nodes: list[int], step: int) -> Iterator[Request]:
    """Yield the requests of all batches from `step` on, without end.

    Not a method: a stream that refers to its owner would keep its worker processes until the garbage collector runs.
    """
    for t in itertools.count(step):
        for node in nodes:
            yield indices(node, t), _draws(seed, node, t)


def _draws(seed: int, node: int, step: int) -> int:
    return stream(seed, "augment", node, step)
