"""The closed neighborhoods of some nodes, laid out so that all of them are worked on at once.

Legend: m owned nodes. An *entry* is a pair (node, one of its neighbors or itself), E of them, sorted. A vector over the
entries can be read in two ways: as what the nodes hear, W[other, node], or as what they send, W[node, other].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.tree_sweeps import Exchange

_POWERS_UP_TO = 32  # sizes are rounded up to powers of two up to here, then to multiples


class Group(NamedTuple):
    """Nodes whose neighborhoods have about the same size, filled up to D."""

    nodes: IntArray  # (g,)
    entries: IntArray  # (g, D); E where there is none


class Neighborhoods:
    """Who is next to the owned nodes of an undirected graph, and the way to them."""

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        self.graph, self.nodes, self._exchange = graph, nodes, exchange
        pattern = graph.pattern
        first, last = pattern.indptr[nodes.start], pattern.indptr[nodes.stop]
        # On an undirected graph rows and columns have the same pattern, so one slice describes both readings.
        self.sent, self.heard = np.arange(first, last), pattern.by_column[first:last]  # places in graph.pattern
        self.owners, self.others = pattern.rows[first:last] - nodes.start, pattern.cols[first:last]
        self.starts = pattern.indptr[nodes.start : nodes.stop] - first
        loop = pattern.rows[first:last] == pattern.cols[first:last]
        self.loops, self.arcs = np.flatnonzero(loop), np.flatnonzero(~loop)
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
        """The other reading of x: what the other ends hold of the same arcs; loops stay. One message per arc."""
        arrived = x.copy()
        arrived[self.arcs] = self._exchange(x[self.arcs, None], self.graph)[:, 0]
        return arrived

    def sums(self, x: FloatArray) -> FloatArray:
        """Per node, (m,)."""
        return np.add.reduceat(x, self.starts)

    def largest(self, x: FloatArray) -> FloatArray:
        """Per node, (m,)."""
        return np.maximum.reduceat(x, self.starts)

    def filled(self, x: FloatArray, filling: float = 0.0) -> list[FloatArray]:
        """x per group, (g, D)."""
        longer = np.empty(len(x) + 1)
        longer[:-1], longer[-1] = x, filling
        return [longer[group.entries] for group in self.groups]

    def flat(self, parts: list[FloatArray]) -> FloatArray:
        """One vector over the entries from one array (g, D) per group."""
        x = np.empty(len(self.owners) + 1)
        for group, part in zip(self.groups, parts, strict=True):
            x[group.entries] = part
        return x[:-1]

    # --- one row per node, for what is kept ---
    @property
    def width(self) -> int:
        """The size of the largest neighborhood in the whole graph."""
        return 1 + max(self.graph.degrees)

    def by_node(self, x: FloatArray) -> FloatArray:
        """x with one row per owned node, (m, width), filled up with 0."""
        rows = np.zeros((len(self.starts), self.width))
        rows[self.owners, np.arange(len(self.owners)) - self.starts[self.owners]] = x
        return rows

    def from_rows(self, rows: FloatArray) -> FloatArray:
        """The vector x that `by_node` made rows of."""
        x: FloatArray = rows[self.owners, np.arange(len(self.owners)) - self.starts[self.owners]]
        return x


def _rounded_up(size: int) -> int:
    """A power of two, or a multiple of 32: few groups, and not much filling."""
    return 1 << (size - 1).bit_length() if size <= _POWERS_UP_TO else -(-size // _POWERS_UP_TO) * _POWERS_UP_TO
