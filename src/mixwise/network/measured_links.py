"""Latency and bandwidth between processes, measured along the edges of a graph.

The pairs of an edge coloring take turns, color by color, so that a process is in one pair at a time, as in gossip
between pairs. Both send at once and wait for each other: a message of b bytes takes latency + b / bandwidth seconds,
as in `Link`, and two sizes tell the two apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from mixwise.graphs import Graph, edge_coloring
from mixwise.network.links import Link
from mixwise.protocols import Network

Edge = tuple[int, int]

_SHORT, _PROBE, _LONGEST = 8, 2**18, 2**24  # bytes of a message
_TURN, _LONG_MESSAGE = 0.5, 0.1  # seconds for all short messages of a color; for a long message
_FEWEST, _MOST = 7, 101  # messages of which the median is taken


def measured_links(network: Network, clock: Callable[[], float] = time.perf_counter) -> dict[Edge, Link]:
    """Measure the links between processes that own one node each; all of them must call it, and all get the result.

    Args:
        network: how rows travel.
        clock: in seconds.
    """
    links = {}
    with network.traffic.pause():
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
        network.exchange(rows, matching, cargo="sketches")
        taken.append(clock() - start)
    own = torch.full((len(nodes), 1), median(taken), dtype=torch.float64)
    everyone = network.gather(own)[:, 0].tolist()
    return {(i, j): max(everyone[i], everyone[j]) for i, j in matching.edges}
