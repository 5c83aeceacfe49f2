"""All n nodes in one process: a gossip step is one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.base import Cargo, Traffic
from mixwise.network.links import Links
from mixwise.network.packing import LONG_ROW, Packing, average_bytes, message_bytes

# Up to here a dense product is the faster one, measured: 0.25 ms against 0.8 ms at n = 16, d = 100,000.
_DENSE_LIMIT = 64
_BLOCK = 1 << 17  # numbers of one block of columns that is mixed in place: it stays in the cache


class SimulatedNetwork:
    """A network whose n nodes are the rows of one tensor.

    >>> from mixwise.graphs import Graph
    >>> from mixwise.mixing import metropolis_hastings
    >>> pair = Graph(2, [(0, 1)])
    >>> SimulatedNetwork(pair).mix(torch.tensor([[0.0], [1.0]]), metropolis_hastings(pair)).tolist()
    [[0.5], [0.5]]

    Args:
        graph: who talks to whom.
        links: how long messages take, if that is to be counted too.
    """

    _averages = True  # whether W = J is counted as an average

    def __init__(self, graph: Graph, links: Links | None = None) -> None:
        self.graph, self.links = graph, links
        self.nodes = range(graph.n)
        self.traffic = Traffic()
        self.step: int | None = None

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Wᵀ X; a row travels along every arc with a non-zero weight, unless W = J, which is an average."""
        return self._start(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Arrived:
        """Nothing has to travel, so it could be done at once."""
        return self._start(rows, W, None)

    def _start(self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None) -> Arrived:
        if rows.ndim != 2 or len(rows) != W.n:
            raise MixingError(f"rows of shape {tuple(rows.shape)} cannot be mixed by a matrix for {W.n} nodes")
        size = message_bytes(rows, packing)
        if self._averages and W.is_average and packing is None:
            self._count_average(size)
            return Arrived(rows, W)
        self.traffic.parameters += W.messages * size
        if self.links is not None:
            pattern = W.graph.pattern
            used = (pattern.rows != pattern.cols) & (W.weights != 0)
            self.traffic.seconds += self.links.round(pattern.rows[used], pattern.cols[used], size)
        return Arrived(rows, W)

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """The same rows in the order of their receivers."""
        order = graph.arcs.by_receiver
        if messages.ndim != 2 or len(messages) != len(order):
            raise MixingError(f"messages of shape {tuple(messages.shape)} for {len(order)} arcs; one row each")
        self.traffic.add(cargo, messages.numel() * messages.element_size())
        if self.links is not None:
            size = messages.shape[1] * messages.element_size()
            self.traffic.seconds += self.links.round(graph.arcs.senders, graph.arcs.receivers, size)
        return messages[torch.tensor(order, device=messages.device)]  # a copy: the graph's order is read-only

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves: all of them are here. Counted as an all-gather: each row reaches n − 1 nodes."""
        self.traffic.sketches += (len(rows) - 1) * rows.numel() * rows.element_size()
        if self.links is not None:
            self.traffic.seconds += self.links.gather(self.graph, rows[0].numel() * rows.element_size())
        return rows

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean row."""
        self._count_average(rows.shape[1] * rows.element_size())
        return rows.mean(dim=0)

    def _count_average(self, size: int) -> None:
        """In parts, as an all-reduce; short rows whole, as a gather."""
        self.traffic.parameters += average_bytes(self.graph.n, size)
        if self.links is not None:
            seconds = self.links.average if size >= LONG_ROW else self.links.gather
            self.traffic.seconds += seconds(self.graph, size)

    def uncounted(self) -> AbstractContextManager[None]:
        """Traffic inside is not counted."""
        return self.traffic.unchanged()


@dataclass(frozen=True)
class Arrived:
    """A gossip step of rows that are all here."""

    rows: torch.Tensor
    W: MixingMatrix

    def wait(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wᵀ X, in a new tensor or in `out`, which may be X itself."""
        product = _product(self.W, self.rows)
        if out is None:
            return product(self.rows)
        for columns in self._blocks():  # rows and out may be the same tensor
            out[:, columns] = product(self.rows[:, columns])
        return out

    def move(self, rows: torch.Tensor) -> None:
        """rows + (W − I)ᵀ X, in one product, as processes do it: rounded in the same way."""
        product = _product(self.W, self.rows, minus=1.0)
        for columns in self._blocks():
            rows[:, columns] += product(self.rows[:, columns])

    def _blocks(self) -> Iterator[slice]:
        width = max(1, _BLOCK // self.W.n)
        return (slice(start, start + width) for start in range(0, self.rows.shape[1], width))


def _product(W: MixingMatrix, rows: torch.Tensor, minus: float = 0.0) -> Callable[[torch.Tensor], torch.Tensor]:
    """Multiplication by Wᵀ − minus I, in the precision and on the device of the rows."""
    if W.n <= _DENSE_LIMIT:
        dense = torch.from_numpy(W.to_dense().T - minus * np.eye(W.n)).to(rows)
        return lambda part: dense @ part
    incoming = W.incoming.tocoo()
    index = torch.from_numpy(incoming.coords[0]), torch.from_numpy(incoming.coords[1])
    values = incoming.data - minus * (incoming.coords[0] == incoming.coords[1])  # every node has a loop in the pattern
    weights = torch.tensor(values, dtype=rows.dtype, device=rows.device)
    operator = torch.sparse_coo_tensor(
        torch.stack(index).to(rows.device), weights, (W.n, W.n), is_coalesced=True, check_invariants=False
    )

    def times(part: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = torch.sparse.mm(operator, part)
        return mixed

    return times
