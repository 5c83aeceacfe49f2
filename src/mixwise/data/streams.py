"""Samples that every node draws from its own stream: nothing is stored per node, so there may be any number of nodes.

Legend: labels (N,) whole numbers; m nodes, L labels of each, batches of b samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.partition import IntArray, Labels, checked_labels
from mixwise.errors import DataError
from mixwise.parts import Count, part
from mixwise.seeding import hashed, stream


@dataclass(frozen=True, eq=False)
class LabelStreams:
    """Nodes that draw their batches, with replacement, from all samples of their own labels.

    The labels of a node are a function of the seed and its number, its draws also of the step: a hash, computed when it
    is needed. Several nodes may draw the same sample. It takes the place of a `Partition`.

    Args:
        labels: (N,) whole numbers.
        nodes: n.
        labels_per_node: L, how many different labels a node has.
        seed: of the labels.
    """

    labels: IntArray
    nodes: int
    labels_per_node: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 1 <= self.labels_per_node <= len(self._values):
            found = f"labels_per_node = {self.labels_per_node} on {self.nodes} nodes"
            raise DataError(f"{found}; use 1 or more nodes, and 1 to {len(self._values)} labels, as many as occur")

    def __len__(self) -> int:
        return self.nodes

    @cached_property
    def _by_label(self) -> IntArray:
        return np.argsort(self.labels, kind="stable")

    @cached_property
    def _values(self) -> IntArray:
        return np.unique(self.labels)

    def labels_of(self, nodes: npt.ArrayLike) -> IntArray:
        """Return the labels of these nodes, ascending, (m, L)."""
        count = len(self._values)
        keys = hashed(np.asarray(nodes)[:, None] * count + np.arange(count), stream(self.seed, "labels"))
        return self._values[np.sort(np.argsort(keys, axis=1)[:, : self.labels_per_node], axis=1)]

    def label_counts(self, labels: Labels, classes: int | None = None) -> IntArray:
        """Return how many samples of each label a node draws from, (n, classes)."""
        frequency = np.bincount(checked_labels(labels), minlength=classes or 0)
        counts = np.zeros((self.nodes, len(frequency)), dtype=np.int64)
        own = self.labels_of(np.arange(self.nodes))
        np.put_along_axis(counts, own, frequency[own], axis=1)
        return counts

    def batches(self, batch: int, seed: int) -> StreamBatches:
        """Return the batches of all nodes."""
        return StreamBatches(self, batch, seed)


@dataclass(frozen=True, eq=False)
class StreamBatches:
    """The batches that nodes draw from their streams, as indices into the whole dataset."""

    streams: LabelStreams
    batch: int
    seed: int

    def __call__(self, node: int, step: int) -> torch.Tensor:
        """Return the indices of the batch of one node at `step`, int64 (b,)."""
        return self.all([node], step)[0]

    def all(self, nodes: Sequence[int], step: int) -> torch.Tensor:
        """Return the indices of the batches of several nodes at `step`, int64 (m, b)."""
        ids, by_label = np.asarray(nodes, dtype=np.int64), self.streams._by_label
        draws = hashed(ids[:, None] * self.batch + np.arange(self.batch), stream(self.seed, "samples", step))
        which, draws = draws % np.uint64(self.streams.labels_per_node), draws // np.uint64(self.streams.labels_per_node)
        label = np.take_along_axis(self.streams.labels_of(ids), which.astype(np.int64), axis=1)
        count = np.bincount(self.streams.labels)
        first = np.cumsum(count) - count
        place = (draws % count[label].astype(np.uint64)).astype(np.int64)
        return torch.from_numpy(by_label[first[label] + place])


@part("streams", "partition", title="{labels_per_node} labels per node, drawn from a stream of each node")
def streams(labels: Labels, nodes: int, labels_per_node: Count = 2, seed: int = 0) -> LabelStreams:
    """Let every node draw its samples, with replacement, from all samples of `labels_per_node` labels of its own.

    Nothing is stored per node, so that there may be more nodes than samples.
    """
    return LabelStreams(checked_labels(labels), nodes, labels_per_node, seed)
