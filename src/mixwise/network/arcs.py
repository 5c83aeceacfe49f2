"""The arcs into the nodes of a process, for arithmetic on single messages.

Legend: A arcs into the m owned nodes, sorted by (receiver, sender); D (A, d) differences between sender and receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.routes import arriving_at
from mixwise.network.values import BoolArray

_CLAIM = 2.0  # medians: the largest distance, or length, that a sketch may claim


@dataclass(frozen=True)
class Arcs:
    """Arcs into the owned nodes, sorted by (receiver, sender): the sender, and the position of the receiver (A,)."""

    senders: IntArray
    owner: IntArray
    nodes: range

    @classmethod
    def into(cls, graph: Graph, nodes: range) -> Arcs:
        """Return all arcs of a graph into these nodes."""
        arriving = arriving_at(nodes, graph)
        return cls(graph.arcs.senders[arriving], graph.arcs.receivers[arriving] - nodes.start, nodes)

    def index(self, rows: torch.Tensor) -> torch.Tensor:
        """The positions of the receivers, on the device of the rows."""
        return torch.from_numpy(self.owner).to(rows.device)


@dataclass(frozen=True)
class Route:
    """A gossip step along the arcs with a weight; positions of the rows that leave, and weights (A,) of those arriving.

    If no process knows all of W, the graph has the known arcs only; `complete` says that rows travel along all arcs.
    """

    graph: Graph
    whole: bool
    complete: bool
    leaving: IntArray
    arcs: Arcs
    weights: FloatArray


def route_of(W: MixingMatrix, graph: Graph, nodes: range) -> Route:
    """Return the route of a gossip step with W, symmetrized if it can be, on a network with this graph."""
    pattern, weights = W.graph.pattern, W.weights
    if not W.graph.directed:
        weights = (weights + weights[pattern.by_column]) / 2
    apart = (pattern.rows != pattern.cols) & (weights != 0)
    used = W.graph
    if apart.sum() < len(pattern.rows) - W.n:
        used = Graph(W.n, np.stack([pattern.rows[apart], pattern.cols[apart]], axis=1), directed=W.graph.directed)
    senders = used.arcs.senders  # arcs are in the order of the pattern
    leaving = senders[slice(*np.searchsorted(senders, [nodes.start, nodes.stop]))] - nodes.start
    arcs, arriving = Arcs.into(used, nodes), arriving_at(nodes, used)
    return Route(used, W.whole, W.whole and used == graph, leaving, arcs, weights[apart][arriving])


def lower_median(values: FloatArray, owner: IntArray, m: int) -> FloatArray:
    """Return the lower median of the finite values of each of m owners, sorted by owner; 0 where there are none.

    >>> lower_median(np.array([3.0, 1.0, 2.0, 9.0, np.inf]), np.array([0, 0, 0, 0, 1]), 2).tolist()
    [2.0, 0.0]
    """
    finite = np.isfinite(values)
    values, owner = values[finite], owner[finite]
    ordered, count = values[np.lexsort((values, owner))], np.bincount(owner, minlength=m)
    found = np.zeros(m)
    found[count > 0] = ordered[(np.cumsum(count) - count + (count - 1) // 2)[count > 0]]
    return found


def bounded(length: FloatArray, owner: IntArray, m: int) -> FloatArray:
    """Return by how much rows of this length must be scaled to claim no more than their receiver's median allows."""
    most = _CLAIM * lower_median(length, owner, m)[owner]
    scale: FloatArray = np.where(length > most, most / np.where(length > most, length, 1.0), 1.0)
    return scale


def column(values: FloatArray | BoolArray, like: torch.Tensor) -> torch.Tensor:
    """Return one value per row as a column (A, 1) in the precision of these rows, on their device."""
    return torch.from_numpy(values.astype(np.float64)).to(like)[:, None]
