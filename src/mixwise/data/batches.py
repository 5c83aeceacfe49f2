"""The samples that a node sees at step t: a function of the seed, the node and t, so that resuming needs no state.

A node passes through its own data again and again, each pass in a new random order; batch t is items t·b … (t+1)·b − 1
of the endless sequence of passes. A batch may span passes, and may be larger than the node's data.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mixwise.data.partition import Partition
from mixwise.errors import DataError
from mixwise.seeding import generator


def batch_indices(size: int, batch: int, seed: int, node: int, step: int) -> torch.Tensor:
    """Return the positions 0 … size − 1 in the node's own data that form its batch at `step`, int64 (batch,)."""
    return _cut(size, batch, step, lambda number: pass_order(size, seed, node, number))


def pass_order(size: int, seed: int, node: int, number: int) -> torch.Tensor:
    """Return the order of a node's `size` samples in pass `number`, int64 (size,)."""
    return torch.randperm(size, generator=generator(seed, "order", node, number), device="cpu")


class NodeBatches:
    """The batches of all nodes, as indices into the whole dataset; the orders of the current passes are cached.

    Args:
        partition: which samples each node holds.
        batch: the number of samples per node and step.
        seed: of the orders.
    """

    def __init__(self, partition: Partition, batch: int, seed: int) -> None:
        _check(batch=batch)
        self.partition, self.batch, self.seed = partition, batch, seed
        self._orders: dict[int, dict[int, torch.Tensor]] = {}  # node -> pass -> dataset indices in that order

    def __call__(self, node: int, step: int) -> torch.Tensor:
        """Return the indices into the dataset of the batch of `node` at `step`, int64 (batch,)."""
        if not 0 <= node < len(self.partition):
            raise DataError(f"node = {node}; the partition has nodes 0 to {len(self.partition) - 1}")
        known, used = self._orders.get(node, {}), {}
        own = self.partition[node]

        def order(number: int) -> torch.Tensor:
            if number not in known:
                known[number] = torch.from_numpy(own[pass_order(len(own), self.seed, node, number).numpy()])
            used[number] = known[number]
            return used[number]

        indices = _cut(len(own), self.batch, step, order)
        self._orders[node] = used
        return indices


def _cut(size: int, batch: int, step: int, order: Callable[[int], torch.Tensor]) -> torch.Tensor:
    _check(size=size, batch=batch)
    if step < 0:
        raise DataError(f"step = {step}; steps count from 0")
    start, stop = step * batch, (step + 1) * batch
    passes = range(start // size, (stop - 1) // size + 1)
    offset = passes.start * size
    return torch.cat([order(number) for number in passes])[start - offset : stop - offset]


def _check(**positive: int) -> None:
    for name, value in positive.items():
        if value < 1:
            raise DataError(f"{name} = {value}; it must be at least 1")
