"""How nodes compute together by messages between neighbors only: their neighborhoods, and sums over a tree.

Legend: n nodes in all, m of them owned here. An *entry* is a pair (owned node, one of its neighbors or itself), E of
them, sorted. A vector over the entries can be read in two ways: as what the nodes hear, W[other, node], or as what they
send, W[node, other].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.trees import breadth_first
from mixwise.mixing.matrix import FloatArray, entries_of

# `Network.exchange` on arrays of any dtype: one row per arc of a graph, from those that the owned nodes send, sorted by
# (i, j), to those that arrive at them, sorted by (j, i).
Exchange: TypeAlias = Callable[[npt.NDArray[Any], Graph], npt.NDArray[Any]]

_EXACT_UP_TO, _POWERS_UP_TO = 8, 32  # sizes are kept, rounded up to powers of two, then to multiples of 32


def exchange_here(messages: npt.NDArray[Any], graph: Graph) -> npt.NDArray[Any]:
    """The exchange of a process that owns all nodes."""
    return messages[graph.arcs.by_receiver]


# --- neighborhoods ---
class Group(NamedTuple):
    """Nodes whose neighborhoods have similar sizes, padded to D."""

    nodes: IntArray  # (g,)
    entries: IntArray  # (g, D); E where there is none


class Neighborhoods:
    """The closed neighborhoods of the owned nodes of an undirected graph, laid out to work on all of them at once."""

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        self.graph, self.nodes, self._exchange = graph, nodes, exchange
        pattern = graph.pattern
        # On an undirected graph rows and columns have the same pattern, so `sent` describes both readings.
        self.sent, self.heard = entries_of(graph, nodes)  # positions in graph.pattern
        self.owners, self.others = pattern.rows[self.sent] - nodes.start, pattern.cols[self.sent]
        self.starts = pattern.indptr[nodes.start : nodes.stop] - pattern.indptr[nodes.start]
        loop = self.owners + nodes.start == self.others
        self.loops, self.arcs = np.flatnonzero(loop), np.flatnonzero(~loop)
        self.width = 1 + max(graph.degrees)  # the size of the largest neighborhood in the whole graph
        self.tree = TreeSweeps(graph, nodes, exchange)
        self.groups = self._grouped()

    def _grouped(self) -> list[Group]:
        sizes = np.diff(self.starts, append=len(self.owners))
        widths = np.array([_rounded_up(int(size)) for size in sizes])
        groups = []
        for width in np.unique(widths):
            members = np.flatnonzero(widths == width)
            places = np.arange(width)
            entries = self.starts[members, None] + places
            groups.append(Group(members, np.where(places < sizes[members, None], entries, len(self.owners))))
        return groups

    def across(self, x: FloatArray) -> FloatArray:
        """The other reading of x (E,): what the other ends hold of the same arcs. One message per arc."""
        arrived = x.copy()
        arrived[self.arcs] = self._exchange(x[self.arcs, None], self.graph)[:, 0]
        return arrived

    def sums(self, x: FloatArray) -> FloatArray:
        """The sum of x (E,) over each neighborhood, (m,)."""
        return np.add.reduceat(x, self.starts)

    def largest(self, x: FloatArray) -> FloatArray:
        """The maximum of x (E,) over each neighborhood, (m,)."""
        return np.maximum.reduceat(x, self.starts)

    def filled(self, x: FloatArray, filling: float = 0.0) -> list[FloatArray]:
        """x (E,) as one padded array (g, D) per group."""
        padded = np.append(x, filling)
        return [padded[group.entries] for group in self.groups]

    def flat(self, parts: list[FloatArray]) -> FloatArray:
        """The vector (E,) from one padded array (g, D) per group; the inverse of `filled`."""
        x = np.empty(len(self.owners) + 1)
        for group, part in zip(self.groups, parts, strict=True):
            x[group.entries] = part
        return x[:-1]

    def by_node(self, x: FloatArray) -> FloatArray:
        """x (E,) as one row per owned node, (m, width), padded with 0: the form that is kept between solves."""
        rows = np.zeros((len(self.starts), self.width))
        rows[self._cells] = x
        return rows

    def from_rows(self, rows: FloatArray) -> FloatArray:
        """The vector (E,) from one row per owned node; the inverse of `by_node`."""
        x: FloatArray = rows[self._cells]
        return x

    @property
    def _cells(self) -> tuple[IntArray, IntArray]:
        return self.owners, np.arange(len(self.owners)) - self.starts[self.owners]


def _rounded_up(size: int) -> int:
    """The size itself, a power of two or a multiple of 32: few groups, little padding."""
    if size <= _EXACT_UP_TO:
        return size
    return 1 << (size - 1).bit_length() if size <= _POWERS_UP_TO else -(-size // _POWERS_UP_TO) * _POWERS_UP_TO


# --- sums over all nodes ---
class _Level(NamedTuple):
    """The edges between the nodes at one depth and their parents."""

    up: Graph  # arcs child → parent
    down: Graph  # arcs parent → child
    children: IntArray  # the owned nodes at this depth, ascending
    parents: IntArray  # the owned parents of nodes at this depth, sorted by parent, then child


class TreeSweeps:
    """Sums and maxima over the nodes of a connected graph, up a breadth-first tree to node 0 and down again.

    Every node sends one message to its parent and one to each child. It adds its children's messages in ascending
    order, so that the sums have the same bits for every division of the nodes over processes.
    """

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        self._exchange = exchange
        order, self.parents = breadth_first(graph, 0)  # (n,), node 0 is its own parent
        depths, parent_of = [0] * graph.n, self.parents.tolist()
        for node in order[1:].tolist():
            depths[node] = depths[parent_of[node]] + 1
        by_depth = np.split(np.argsort(depths, kind="stable"), np.cumsum(np.bincount(depths))[:-1])
        self._levels = []
        for children in by_depth[:0:-1]:
            arcs = np.stack([children, self.parents[children]], axis=1)
            up, down = Graph(graph.n, arcs, directed=True), Graph(graph.n, arcs[:, ::-1], directed=True)
            senders = (level.arcs.senders for level in (up, down))
            owned = (x[(x >= nodes.start) & (x < nodes.stop)] - nodes.start for x in senders)
            self._levels.append(_Level(up, down, *owned))

    def subtree_sums(self, values: FloatArray) -> FloatArray:
        """The sum of values (m, w) over the subtree of each owned node, itself included, (m, w)."""
        return self._upwards(values, values.shape[1])

    def total(self, values: FloatArray, maxima: int = 0) -> FloatArray:
        """The sums of the columns of values (m, w) over all nodes, (w,), but maxima of the last `maxima` columns."""
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
