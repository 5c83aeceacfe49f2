"""The batches of the nodes as a module takes them: gathered, augmented, in the precision of the rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from mixwise.data import Dataset, LabelStreams, NodeBatches, Partition, StreamBatches
from mixwise.data.dataset import Request
from mixwise.data.fields import FieldBatch
from mixwise.seeding import generator, stream

Augment: TypeAlias = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Batch: TypeAlias = tuple[Any, torch.Tensor]


@dataclass(eq=False)
class Inputs:
    """The batch of every node at every step; a function of the seed, the node and the step.

    Args:
        data: the whole training set.
        partition: which samples each node holds.
        batch: samples per node and step, b.
        augment: changes a batch of inputs at random; `Samples` augment themselves.
        device, dtype: of the batches.
        seed: of the order of the data and the augmentation.
    """

    data: Dataset
    partition: Partition | LabelStreams
    batch: int
    augment: Augment | None
    device: torch.device
    dtype: torch.dtype
    seed: int

    def __post_init__(self) -> None:
        self.data = self.data.to(self.device)
        if self.data.y.is_floating_point():
            self.data = replace(self.data, y=self.data.y.to(self.dtype))
        self._indices = self.partition.batches(self.batch, self.seed)
        self._stream: Iterator[torch.Tensor] = iter(())
        self._upcoming: tuple[list[int], int] | None = None  # the nodes and the step that the stream yields next

    @property
    def sample_size(self) -> int:
        """The numbers of one sample in memory; 1 if samples are read on demand."""
        return self.data.x[0].numel() if isinstance(self.data.x, torch.Tensor) else 1

    def one(self, node: int, step: int) -> Batch:
        """Return the batch of one node, (b, …) and (b,)."""
        index, samples = self._indices(node, step), self.data.x
        if isinstance(samples, torch.Tensor):
            x = self._augmented(samples.index_select(0, index.to(self.device)), node, step)
        else:
            x = samples.take(index, stream(self.seed, "augment", node, step)).to(self.device)
        return self.as_input(x), self.data.y[index.to(self.device)]

    def each(self, nodes: Sequence[int], step: int) -> Iterator[Batch]:
        """Yield the batches of several nodes, one after the other; `Samples` may read those of later steps ahead."""
        samples = self.data.x
        if isinstance(samples, torch.Tensor):
            yield from (self.one(node, step) for node in nodes)
            return
        if self._upcoming != (list(nodes), step):
            self._stream = samples.stream(_requests(self._indices, self.seed, list(nodes), step))
        self._upcoming = None
        for node, x in zip(nodes, self._stream, strict=False):
            yield self.as_input(x.to(self.device)), self.data.y[self._indices(node, step).to(self.device)]
        self._upcoming = list(nodes), step + 1

    def all(self, nodes: Sequence[int], step: int) -> Batch:
        """Return the batches of several nodes, (m, b, …) and (m, b), of inputs in memory."""
        inputs = self.data.tensor
        index = self._indices.all(nodes, step).to(self.device)
        x = inputs.index_select(0, index.reshape(-1)).view(*index.shape, *inputs.shape[1:])
        if self.augment is not None:
            x = torch.stack([self._augmented(part, node, step) for part, node in zip(x, nodes, strict=True)])
        return self.as_input(x), self.data.y[index]

    def as_input(self, x: Any) -> Any:
        """Convert numbers to the precision of the rows; a byte v of an image means v / 255; integers (tokens) stay."""
        if isinstance(x, FieldBatch):
            return x.mapped(self.as_input)
        if x.dtype == torch.uint8:
            return x.to(self.dtype) / 255
        return x.to(self.dtype) if x.is_floating_point() else x

    def _augmented(self, x: torch.Tensor, node: int, step: int) -> torch.Tensor:
        return x if self.augment is None else self.augment(x, generator(self.seed, "augment", node, step))


def _requests(indices: NodeBatches | StreamBatches, seed: int, nodes: list[int], step: int) -> Iterator[Request]:
    """Yield the requests of all batches from `step` on, without end.

    Not a method: a stream that refers to its owner would keep its worker processes until the garbage collector runs.
    """
    for t in itertools.count(step):
        for node in nodes:
            yield indices(node, t), stream(seed, "augment", node, t)
