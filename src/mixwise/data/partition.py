"""Partitions: which node holds which of the samples 0 … N − 1, drawn once and fixed for the run; and its batches.

The samples that a node sees at step t are a function of the seed, the node and t, so that resuming needs no state. A
node passes through its own data again and again, each pass in a new random order; batch t is items t·b … (t+1)·b − 1 of
the endless sequence of passes. A batch may span passes, and may be larger than the node's data.

Legend: labels (N,) whole numbers; a part (N_i,) holds the indices of node i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import DataError, kind_of
from mixwise.parts import Count, Positive, part
from mixwise.seeding import generator, numpy_generator

IntArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.ArrayLike | torch.Tensor

_DIRICHLET = "by label, in proportions from Dir({alpha:g})"
_GROUP = 10  # nodes that share one slice of the data in `dirichlet`
_TRIES = 20_000  # a few seconds


@dataclass(frozen=True, eq=False)
class Partition:
    """One array of indices per node; every index from 0 to N − 1 belongs to exactly one node, and no node is empty.

    >>> Partition(([0, 2], [1])).sizes
    (2, 1)
    """

    parts: tuple[IntArray, ...]

    def __post_init__(self) -> None:
        parts = tuple(np.array(part) for part in self.parts)
        if not parts:
            raise DataError("a partition over no nodes; give one list of indices per node")
        for node, held in enumerate(parts):
            if held.size == 0:
                raise DataError(f"node {node} of {len(parts)} has no data; use fewer nodes or more samples")
            if held.ndim != 1 or held.dtype.kind not in "iu":
                raise DataError(f"node {node} holds shape {held.shape} of {held.dtype}; expected a list of indices")
        parts = tuple(part.astype(np.int64) for part in parts)
        held, owner = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        for at in np.flatnonzero((held < 0) | (held >= len(held))):
            found = f"node {owner[at]} holds index {held[at]}, but the partition has {len(held)} indices"
            raise DataError(f"{found}, which must be 0 to {len(held) - 1}; to leave out samples, take a subset first")
        for twice in np.flatnonzero(np.bincount(held) > 1):
            nodes = " and ".join(map(str, owner[held == twice][:2]))
            raise DataError(f"index {twice} occurs twice (nodes {nodes}); every index belongs to exactly one node")
        for held in parts:
            held.flags.writeable = False
        object.__setattr__(self, "parts", parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of samples on each node."""
        return tuple(len(part) for part in self.parts)

    def label_counts(self, labels: Labels, classes: int | None = None) -> IntArray:
        """Count each label on each node, (n, classes)."""
        return label_counts(labels, self.parts, classes)

    def batches(self, batch: int, seed: int) -> NodeBatches:
        """Return the batches of all nodes."""
        return NodeBatches(self, batch, seed)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, node: int) -> IntArray:
        return self.parts[node]

    def __iter__(self) -> Iterator[IntArray]:
        return iter(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return len(self) == len(other) and all(map(np.array_equal, self.parts, other.parts))

    def __hash__(self) -> int:
        return hash(tuple(part.tobytes() for part in self.parts))


def label_counts(labels: Labels, parts: Iterable[npt.ArrayLike], classes: int | None = None) -> IntArray:
    """Count each label in each part, (n, classes); by default `classes` is the largest label plus one."""
    y = checked_labels(labels)
    classes = int(y.max()) + 1 if classes is None else classes
    if y.min() < 0 or y.max() >= classes:
        raise DataError(f"labels range from {y.min()} to {y.max()}, expected 0 to {classes - 1}; renumber them")
    return np.stack([np.bincount(y[np.asarray(part, dtype=np.int64)], minlength=classes) for part in parts])


@part("iid", "partition", title="uniformly at random")
def iid(samples: int, nodes: int, seed: int = 0) -> Partition:
    """Split the indices at random into equal parts; sizes differ by at most one."""
    if not isinstance(samples, Integral):  # the other partitions take the labels
        raise DataError(f"samples is {kind_of(samples)}; pass their number, such as iid(len(data), nodes)")
    _check_nodes(nodes, samples)
    order = numpy_generator(seed, "partition").permutation(samples)
    return Partition(tuple(np.array_split(order, nodes)))


@part("dirichlet", "partition", title=_DIRICHLET, cite="Lin et al. 2021")
def dirichlet(labels: Labels, nodes: int, alpha: Positive = 0.1, seed: int = 0) -> Partition:
    """Label skew: distribute each label over the nodes in proportions p ~ Dir(α, …, α); small α, few labels per node.

    The scheme of quasi-global momentum (Lin et al. 2021). Nodes form groups of 10 (the last may have fewer), and each
    group shares a random slice of the data. Label by label, p is drawn over those nodes of the group that hold less
    than their share. The draw is repeated until every node has at least half of its share. Then the indices of all
    nodes, concatenated, are cut into equal parts: sizes differ by at most one, and the excess of a node goes to the
    next.

    Three details differ from their code: p is drawn over the nodes with room, where they draw over all and rescale (the
    same distribution, without 0 / 0); cuts are rounded with a random offset, where they round down (which leaves the
    first nodes empty if labels are rare); and no sample is dropped when n does not divide N.

    Args:
        labels: (N,) whole numbers.
        nodes: n.
        alpha: 0.1 is strong skew, 1 moderate; 100 is close to `iid`.
        seed: of the draw.
    """
    y = checked_labels(labels)
    _check_nodes(nodes, len(y))
    if not 0 < alpha <= 1e12:
        raise DataError(f"alpha = {alpha}; it must be above 0 and at most 1e12 (without skew, use `iid`)")
    stream = numpy_generator(seed, "partition")
    slices, dealt = np.array_split(stream.permutation(len(y)), nodes), []
    for first in range(0, nodes, _GROUP):
        group = range(first, min(first + _GROUP, nodes))
        own = np.concatenate(slices[group.start : group.stop])
        members = [own[places] for places in _places(y[own])]
        counts = _skewed_counts([len(indices) for indices in members], group, alpha, stream)
        pieces = [np.split(indices, np.cumsum(row)[:-1]) for indices, row in zip(members, counts, strict=True)]
        dealt += [piece for node in zip(*pieces, strict=True) for piece in node]
    return Partition(tuple(np.array_split(np.concatenate(dealt), nodes)))


def _skewed_counts(label_sizes: list[int], group: range, alpha: float, stream: np.random.Generator) -> IntArray:
    """Draw how many samples of each label go to each node of the group, (labels, nodes)."""
    share = sum(label_sizes) / len(group)
    for _ in range(_TRIES):
        counts = np.zeros((len(label_sizes), len(group)), dtype=np.int64)
        held = np.zeros(len(group), dtype=np.int64)
        for row, size in zip(counts, label_sizes, strict=True):
            room = np.flatnonzero(held < share)
            shares = np.cumsum(stream.dirichlet(np.full(len(room), alpha)))
            ends = np.minimum(np.floor(size * shares + stream.random()), size)
            ends[-1] = size  # the proportions sum to 1 only up to rounding
            row[room] = np.diff(ends, prepend=0)
            held += row
        if held.min() >= int(share / 2):
            return counts
    found = f"nodes {group.start} to {group.stop - 1}, {len(label_sizes)} labels, alpha = {alpha}"
    missed = f"in each of {_TRIES} draws a node had less than half of its share, {int(share / 2)} samples"
    raise DataError(f"{found}: {missed}; raise alpha, or use `by_label`")


@part("by-label", "partition", title="{labels_per_node} labels per node")
def by_label(labels: Labels, nodes: int, labels_per_node: Count = 2, seed: int = 0) -> Partition:
    """Shards: give every node `labels_per_node` shards of one label each, thus at most that many labels.

    The n · labels_per_node shards are allotted to the labels in proportion to their frequency (Adams's apportionment:
    the next shard to the label whose shards are largest), and to the nodes at random. Sizes are equal if all labels are
    equally frequent and divide evenly; otherwise they differ as the shards do.
    """
    y = checked_labels(labels)
    _check_nodes(nodes, len(y))
    places, shards = _places(y), nodes * labels_per_node
    if labels_per_node > len(places):
        raise DataError(
            f"labels_per_node = {labels_per_node}, but {len(places)} labels occur; use {len(places)} or fewer"
        )
    if not len(places) <= shards <= len(y):
        found = f"labels_per_node = {labels_per_node} on {nodes} nodes are {shards} shards"
        raise DataError(f"{found}; use at least one for each of {len(places)} labels, at most one for {len(y)} samples")
    frequency = np.array([len(indices) for indices in places])
    per_label = np.ones_like(frequency)
    for _ in range(shards - len(places)):
        per_label[np.argmax(frequency / per_label)] += 1
    stream = numpy_generator(seed, "partition")
    cut: list[IntArray] = []
    for indices, count in zip(places, per_label, strict=True):
        cut += np.array_split(stream.permutation(indices), count)
    dealt = stream.permutation(shards).reshape(nodes, labels_per_node)
    return Partition(tuple(np.concatenate([cut[shard] for shard in row]) for row in dealt))


def by_group(groups: npt.ArrayLike | torch.Tensor) -> Partition:
    """Natural owners: give node i the samples of the i-th owner, in the sorted order of the ids in `groups` (N,).

    >>> by_group(["eve", "bob", "eve"]).sizes
    (1, 2)
    """
    owners = np.asarray(groups)
    if owners.ndim != 1 or owners.size == 0:
        raise DataError(f"groups of shape {owners.shape}; expected the id of an owner per sample, (N,)")
    return Partition(tuple(_places(owners)))


def _places(values: npt.NDArray[Any]) -> list[IntArray]:
    """Return the positions of each value that occurs, ascending, in the order of the values."""
    _, counts = np.unique(values, return_counts=True)
    return np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1])


def checked_labels(labels: Labels) -> IntArray:
    """Return the labels as an array (N,), or raise an error."""
    y = np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels)
    if y.ndim != 1 or y.size == 0 or y.dtype.kind not in "iu":
        raise DataError(f"labels of shape {y.shape} and {y.dtype}; expected whole numbers, one per sample, (N,)")
    return y.astype(np.int64)


def _check_nodes(nodes: int, samples: int) -> None:
    if not 1 <= nodes <= samples:
        raise DataError(f"nodes = {nodes} for {samples} samples; every node needs a sample: use 1 to {samples} nodes")


# --- batches ---
class NodeBatches:
    """The batches of all nodes, as indices into the whole dataset; the orders of the current passes are cached.

    Args:
        partition: which samples each node holds.
        batch: the number of samples per node and step.
        seed: of the orders.
    """

    def __init__(self, partition: Partition, batch: int, seed: int) -> None:
        if batch < 1:
            raise DataError(f"batch = {batch}; it must be at least 1")
        self.partition, self.batch, self.seed = partition, batch, seed
        self._orders: dict[int, dict[int, IntArray]] = {}  # node -> pass -> dataset indices in that order

    def __call__(self, node: int, step: int) -> torch.Tensor:
        """Return the indices into the dataset of the batch of `node` at `step`, int64 (batch,)."""
        return torch.from_numpy(self._batch(node, step))

    def _batch(self, node: int, step: int) -> IntArray:
        if not 0 <= node < len(self.partition) or step < 0:
            rule = f"the partition has nodes 0 to {len(self.partition) - 1}, steps count from 0"
            raise DataError(f"node = {node}, step = {step}; {rule}")
        size, start = len(self.partition[node]), step * self.batch
        first, last = start // size, (start + self.batch - 1) // size
        known = self._orders.get(node, {})
        orders = {t: known[t] if t in known else self._order(node, t) for t in range(first, last + 1)}
        self._orders[node] = orders
        joined: IntArray = orders[first] if first == last else np.concatenate([*orders.values()])
        return joined[start - first * size :][: self.batch]

    def _order(self, node: int, number: int) -> IntArray:
        """Return the indices of a node in the order of this pass."""
        own, draws = self.partition[node], generator(self.seed, "order", node, number)
        order: IntArray = own[torch.randperm(len(own), generator=draws, device="cpu").numpy()]
        return order

    def all(self, nodes: Sequence[int], step: int) -> torch.Tensor:
        """Return the indices of the batches of several nodes at `step`, int64 (m, batch)."""
        return torch.from_numpy(np.stack([self._batch(node, step) for node in nodes]))
