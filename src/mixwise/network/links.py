"""How long messages take: a latency and a bandwidth per edge, and from them the time of each kind of communication.

A round lasts as long as its slowest message, latency + bytes / bandwidth: nodes send to all neighbors at once, and wait
for all of them. What all nodes do together goes around a ring of n nodes at the pace of the graph's slowest link: a
gather of rows of b bytes takes n − 1 rounds of b bytes, a mean 2 (n − 1) rounds of b / n bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mixwise.errors import NetworkError
from mixwise.graphs import Graph

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Link:
    """Seconds until a message begins to arrive, and bytes that arrive per second from then on."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not self.latency >= 0 or not self.bandwidth > 0:
            raise NetworkError(f"{self}: the latency is 0 seconds or more, the bandwidth above 0 bytes per second")

    def seconds(self, size: float) -> float:
        """How long a message of so many bytes takes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Links:
    """The links of a network: one kind for all edges, and exceptions.

    >>> slow = Links(Link(0.01, 1e6), {(0, 1): Link(0.1, 1e5)})
    >>> slow.round(np.array([1, 2]), np.array([2, 1]), 1000), slow.round(np.array([0, 1]), np.array([1, 0]), 1000)
    (0.011, 0.11)

    Args:
        usual: of every edge that is not named.
        edges: by the pair of nodes, in either order; both directions are alike.
    """

    usual: Link
    edges: Mapping[tuple[int, int], Link] = field(default_factory=dict)

    def round(self, senders: IntArray, receivers: IntArray, size: float) -> float:
        """A round in which each of these arcs carries so many bytes; 0 without arcs."""
        if not len(senders):
            return 0.0
        if not self.edges:
            return self.usual.seconds(size)
        low, high = np.minimum(senders, receivers), np.maximum(senders, receivers)
        special = np.zeros(len(senders), dtype=bool)
        longest = 0.0
        for (i, j), link in self.edges.items():
            here = (low == min(i, j)) & (high == max(i, j))
            if here.any():
                special |= here
                longest = max(longest, link.seconds(size))
        return longest if special.all() else max(longest, self.usual.seconds(size))

    def gather(self, graph: Graph, size: float) -> float:
        """Rows of so many bytes from every node to every other."""
        return (graph.n - 1) * self._slowest(graph, size)

    def average(self, graph: Graph, size: float) -> float:
        """The mean of such rows, at every node."""
        return 2 * (graph.n - 1) * self._slowest(graph, size / graph.n)

    def permuted(self, order: list[int]) -> Links:
        """The same links with other nodes at their ends: node `order[a]` takes the place of node a."""
        return Links(self.usual, {(order[i], order[j]): link for (i, j), link in self.edges.items()})

    def _slowest(self, graph: Graph, size: float) -> float:
        arcs = graph.arcs
        return self.round(arcs.senders, arcs.receivers, size)
