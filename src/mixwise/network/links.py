"""How long messages take: a latency and a bandwidth per edge, and from them the time of each kind of communication.

A round lasts as long as its slowest message, latency + bytes / bandwidth: nodes send to all neighbors at once, and wait
for all of them. What all nodes do together goes around a ring of n nodes at the pace of the graph's slowest link: a
gather of rows of b bytes takes n − 1 rounds of b bytes, a mean 2 (n − 1) rounds of b / n bytes, or a gather of
rows below 64 kB.

Between processes, links are measured: the pairs of an edge coloring take turns, color by color, so that a process is in
one pair at a time, as in gossip between pairs. Both send at once and wait for each other, and messages of two sizes
tell latency and bandwidth apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from mixwise.errors import NetworkError
from mixwise.graphs import Graph, edge_coloring
from mixwise.graphs.graph import IntArray
from mixwise.network.traffic import LONG_ROW, SKETCHES
from mixwise.protocols import Network

Edge = tuple[int, int]

_SHORT, _PROBE, _LONGEST = 8, 2**18, 2**24  # bytes of a message
_TURN, _LONG_MESSAGE = 0.5, 0.1  # seconds for all short messages of a color; for a long message
_FEWEST, _MOST = 7, 101  # messages of which the median is taken


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
    edges: Mapping[Edge, Link] = field(default_factory=dict)

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
        """The mean of such rows, at every node: in parts, or by a gather of short rows, which is faster."""
        if size < LONG_ROW:
            return self.gather(graph, size)
        return 2 * (graph.n - 1) * self._slowest(graph, size / graph.n)

    def permuted(self, order: list[int]) -> Links:
        """The same links with other nodes at their ends: node `order[a]` takes the place of node a."""
        return Links(self.usual, {(order[i], order[j]): link for (i, j), link in self.edges.items()})

    def _slowest(self, graph: Graph, size: float) -> float:
        arcs = graph.arcs
        return self.round(arcs.senders, arcs.receivers, size)


# --- between processes ---
def measured_links(network: Network, clock: Callable[[], float] = time.perf_counter) -> dict[Edge, Link]:
    """Measure the links between processes that own one node each; all of them must call it, and all get the result.

    Args:
        network: how rows travel; its traffic counts the messages of the measurement.
        clock: in seconds.
    """
    links = {}
    for matching in edge_coloring(network.graph):
        short, probe = dict.fromkeys(matching.edges, _SHORT), dict.fromkeys(matching.edges, _PROBE)
        first = _pair_seconds(network, matching, short, _FEWEST, clock)
        count = min(max(int(_TURN / max(*first.values(), 1e-6)), _FEWEST), _MOST)
        latency = _pair_seconds(network, matching, short, count, clock)
        guess = _pair_seconds(network, matching, probe, 3, clock)
        long = {
            edge: min(max(int(_PROBE * _LONG_MESSAGE / seconds), _PROBE), _LONGEST) // 4 * 4
            for edge, seconds in guess.items()
        }
        total = _pair_seconds(network, matching, long, _FEWEST, clock)
        for edge in matching.edges:
            carried = (long[edge] - _SHORT) / max(total[edge] - latency[edge], 1e-9)
            links[edge] = Link(max(latency[edge] - _SHORT / carried, 0.0), carried)
    return links


def _pair_seconds(
    network: Network, matching: Graph, size: dict[Edge, int], count: int, clock: Callable[[], float]
) -> dict[Edge, float]:
    """The median time in which the two nodes of an edge exchange so many bytes, on the slower of them."""
    nodes = network.nodes
    sizes = [size[edge] for edge in matching.edges for node in edge if node in nodes]
    rows = torch.zeros(len(sizes), max(sizes, default=4) // 4)
    network.gather(torch.zeros(len(nodes), 1))  # so that all begin together
    taken = []
    for _ in range(count):
        start = clock()
        network.exchange(rows, matching, cargo=SKETCHES)
        taken.append(clock() - start)
    own = torch.full((len(nodes), 1), float(np.median(taken)), dtype=torch.float64)
    everyone = network.gather(own)[:, 0].tolist()
    return {(i, j): max(everyone[i], everyone[j]) for i, j in matching.edges}
