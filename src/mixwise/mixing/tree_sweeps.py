"""Sums over all nodes by messages between neighbors only: up a breadth-first tree to node 0, and down again.

Legend: n nodes in all, m of them owned here; values (m, w), one row per owned node.
Every node adds what its children send in ascending order, so the sums have the same bits however the nodes are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.paths import breadth_first
from mixwise.mixing.matrix import FloatArray

# One row per arc of a graph, from those that the owned nodes send, sorted by (i, j), to those that arrive at them,
# sorted by (j, i): `Network.exchange`, on arrays of any dtype.
Exchange: TypeAlias = Callable[[npt.NDArray[Any], Graph], npt.NDArray[Any]]


class _Level(NamedTuple):
    """The edges between the nodes at one depth and their parents."""

    up: Graph  # arcs child → parent
    down: Graph  # arcs parent → child
    children: IntArray  # the owned nodes at this depth, ascending
    parents: IntArray  # of each child whose parent is owned, that parent; sorted by parent, then child


class TreeSweeps:
    """Sums and maxima over the nodes of a connected graph; every node sends one message up and one to each child.

    Args:
        graph: who may talk to whom; undirected and connected.
        nodes: the nodes that are owned here.
        exchange: how messages travel.
    """

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        graph.require_connected("a sum over neighbors' messages")
        self._exchange = exchange
        order, self.parents = breadth_first(graph, 0)  # the parent of every node; node 0 is its own
        depths = np.zeros(graph.n, dtype=np.int64)
        for node in order[1:].tolist():
            depths[node] = depths[self.parents[node]] + 1
        self._levels = [
            self._level(graph.n, nodes, np.flatnonzero(depths == depth)) for depth in range(depths.max(), 0, -1)
        ]

    def _level(self, n: int, nodes: range, children: IntArray) -> _Level:
        parents = self.parents[children]
        order = np.lexsort((children, parents))
        owned = [(ends >= nodes.start) & (ends < nodes.stop) for ends in (children, parents[order])]
        return _Level(
            up=Graph(n, np.stack([children, parents], axis=1), directed=True),
            down=Graph(n, np.stack([parents, children], axis=1), directed=True),
            children=children[owned[0]] - nodes.start,
            parents=parents[order][owned[1]] - nodes.start,
        )

    @property
    def depth(self) -> int:
        """The rounds of messages that one way takes."""
        return len(self._levels)

    def subtree_sums(self, values: FloatArray) -> FloatArray:
        """For each owned node the sum over its subtree, itself included, (m, w)."""
        return self._upwards(values, values.shape[1])

    def total(self, values: FloatArray, maxima: int = 0) -> FloatArray:
        """Over all nodes (w,): the sums of the columns, but of the last `maxima` ones the largest entry."""
        folded = self._upwards(values, values.shape[1] - maxima)
        for level in reversed(self._levels):
            folded[level.children] = self._exchange(folded[level.parents], level.down)
        everywhere: FloatArray = folded[0]
        return everywhere

    def _upwards(self, values: FloatArray, sums: int) -> FloatArray:
        folded = np.array(values, dtype=np.float64)
        for level in self._levels:
            arrived = self._exchange(folded[level.children], level.up)
            np.add.at(folded[:, :sums], level.parents, arrived[:, :sums])
            np.maximum.at(folded[:, sums:], level.parents, arrived[:, sums:])
        return folded


def exchange_here(messages: npt.NDArray[Any], graph: Graph) -> npt.NDArray[Any]:
    """The exchange of one process that owns all nodes."""
    return messages[graph.arcs.by_receiver]
