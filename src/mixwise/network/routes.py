"""Which nodes a process owns, which rows it sends to each peer, and where rows that arrive are put.

Routes are made once per matrix or graph and then reused.

Legend: m owned nodes; r rows that arrive; positions count owned rows 0..m-1, and m..m+r-1 for those that arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.sums import Terms, terms_by_receiver

BoolArray: TypeAlias = npt.NDArray[np.bool_]


def block(n: int, rank: int, world: int) -> range:
    """The nodes that one process owns, of contiguous blocks; the first n mod world blocks have one node more.

    >>> [block(10, rank, 4) for rank in range(4)]
    [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    if world > n:
        raise NetworkError(f"{world} processes for {n} nodes: every process needs at least one; start at most {n}")
    size, larger = divmod(n, world)
    start = rank * size + min(rank, larger)
    return range(start, start + size + (rank < larger))


@dataclass(frozen=True)
class Route:
    """The rows that go to, or come from, one peer, in the order in which they travel.

    Attributes:
        peer: the rank of the other process.
        positions: of the rows at the sender; for rows that arrive from an exchange, where they are put.
        runs: (first, count) of consecutive positions: such rows can be sent without copying them.
        index: the positions as a tensor.
    """

    peer: int
    positions: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    index: torch.Tensor


@dataclass(frozen=True)
class MixingRoutes:
    """One gossip step as this process sees it.

    Attributes:
        sends: the owned rows that each peer needs, once each, however many of its nodes hear them.
        receives: the rows of each peer that are needed here, by their positions there; put one after the other.
        arriving: r, how many rows arrive.
        senders: the nodes that they are from.
        nodes: the owned nodes.
        terms: for each owned node the position and the weight of every row that it hears, senders ascending.
        moves: the same for W − I: what has to be added to its own row.
        messages: rows that all nodes send to other nodes; if W is known in part, those that the owned ones send.
        averages: whether every process has one row, and all give and get the same share: an average.
    """

    sends: tuple[Route, ...]
    receives: tuple[Route, ...]
    arriving: int
    senders: IntArray
    nodes: range
    terms: tuple[Terms, ...]
    moves: tuple[Terms, ...]
    messages: int
    averages: bool


@dataclass(frozen=True)
class ExchangeRoutes:
    """One row per arc, as this process sees it.

    Attributes:
        sends: positions among the rows that the owned nodes send, for each peer in the order of its receivers.
        receives: positions among the rows that arrive, in the same order.
        inside: for arcs between owned nodes, the positions of both kinds.
        outgoing, incoming: how many rows are sent and arrive here.
        messages: how many rows travel between all nodes.
    """

    sends: tuple[Route, ...]
    receives: tuple[Route, ...]
    inside: tuple[torch.Tensor, torch.Tensor]
    outgoing: int
    incoming: int
    messages: int


class Router:
    """Makes the routes of one process out of `world`, for matrices on any graph with n nodes."""

    def __init__(self, n: int, rank: int, world: int) -> None:
        self.nodes, self.rank = block(n, rank, world), rank
        self.starts = np.array([block(n, peer, world).start for peer in range(world)])
        self._arcs: tuple[Graph, IntArray, IntArray] | None = None

    def mixing(self, W: MixingMatrix) -> MixingRoutes:
        """The routes of the non-zero weights in the rows and columns of the owned nodes; no other weight is read."""
        n, start, pattern = W.n, self.nodes.start, W.graph.pattern
        touching = self._touching(W.graph)
        outgoing, incoming = (entries[W.weights[entries] != 0] for entries in touching)
        senders, receivers = pattern.rows[outgoing], pattern.cols[outgoing]
        peers = self._owner(receivers)
        away = np.unique(peers[peers != self.rank] * n + senders[peers != self.rank])  # each row once per peer
        heard = pattern.rows[incoming]
        arriving = np.unique(heard[~self._owns(heard)])
        origins = self._owner(arriving)
        loops = pattern.rows[touching[1]] == pattern.cols[touching[1]]  # every node has one, of whatever weight
        moving = W.weights[touching[1]] - loops
        return MixingRoutes(
            sends=_by_peer(away // n, away % n - start),
            receives=_by_peer(origins, arriving - self.starts[origins]),
            arriving=len(arriving),
            senders=arriving,
            nodes=self.nodes,
            terms=self._terms(W.graph, incoming, W.weights[incoming], arriving),
            moves=self._terms(W.graph, touching[1][moving != 0], moving[moving != 0], arriving),
            messages=W.messages if W.whole else int(np.count_nonzero(senders != receivers)),
            averages=W.is_average and 2 < n == len(self.starts),
        )

    def _terms(self, graph: Graph, entries: IntArray, weights: FloatArray, arriving: IntArray) -> tuple[Terms, ...]:
        """Positions and weights by owned node, of entries of the pattern that are sorted by column."""
        heard, hearing = graph.pattern.rows[entries], graph.pattern.cols[entries]
        arrived = len(self.nodes) + np.searchsorted(arriving, heard)
        positions = np.where(self._owns(heard), heard - self.nodes.start, arrived)
        return terms_by_receiver(hearing, self.nodes, positions, weights)

    def exchange(self, graph: Graph) -> ExchangeRoutes:
        """The routes of one row per arc."""
        senders, receivers, by_receiver = graph.arcs
        own, start, stop = self.rank, self.nodes.start, self.nodes.stop
        first, last = np.searchsorted(senders, [start, stop])
        leaving = by_receiver[(by_receiver >= first) & (by_receiver < last)]  # by (j, i), as they will arrive
        peers = self._owner(receivers[leaving])
        arriving = by_receiver[slice(*np.searchsorted(receivers[by_receiver], [start, stop]))]
        origins = self._owner(senders[arriving])
        order = np.argsort(origins, kind="stable")
        order = order[origins[order] != own]
        return ExchangeRoutes(
            sends=_by_peer(peers[peers != own], leaving[peers != own] - first),
            receives=_by_peer(origins[order], order),
            inside=(torch.from_numpy(leaving[peers == own] - first), torch.from_numpy(np.flatnonzero(origins == own))),
            outgoing=int(last - first),
            incoming=len(arriving),
            messages=len(senders),
        )

    def _touching(self, graph: Graph) -> tuple[IntArray, IntArray]:
        """Entries of the pattern in the rows of the owned nodes, and those in their columns, sorted by column."""
        if self._arcs is None or self._arcs[0] != graph:
            pattern = graph.pattern
            first, last = pattern.indptr[[self.nodes.start, self.nodes.stop]]
            columns = pattern.cols[pattern.by_column]
            here = slice(*np.searchsorted(columns, [self.nodes.start, self.nodes.stop]))
            self._arcs = graph, np.arange(first, last), pattern.by_column[here]
        return self._arcs[1:]

    def _owns(self, nodes: IntArray) -> BoolArray:
        return (nodes >= self.nodes.start) & (nodes < self.nodes.stop)

    def _owner(self, nodes: IntArray) -> IntArray:
        return np.searchsorted(self.starts, nodes, side="right") - 1


def _by_peer(peers: IntArray, positions: IntArray) -> tuple[Route, ...]:
    """One route per peer, from peers in ascending order."""
    bounds = np.flatnonzero(np.diff(peers, prepend=-1, append=-1)).tolist()
    return tuple(_route(int(peers[a]), positions[a:b]) for a, b in pairwise(bounds))


def _route(peer: int, positions: IntArray) -> Route:
    bounds = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    runs = tuple((int(positions[a]), b - a) for a, b in pairwise(bounds))
    return Route(peer, tuple(positions.tolist()), runs, torch.tensor(positions))
