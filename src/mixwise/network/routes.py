"""Which nodes a process owns, which rows it sends to each peer, and where rows that arrive are put.

Routes are made once per matrix or graph and then reused.

Legend: m owned nodes; r rows that arrive; positions count owned rows 0..m-1, and m..m+r-1 for those that arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import entries_of
from mixwise.network.sums import Terms, terms_by_receiver
from mixwise.network.traffic import LONG_ROW
from mixwise.network.values import BoolArray


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


def arriving_at(nodes: range, graph: Graph) -> IntArray:
    """The positions in `graph.arcs` of the arcs into these nodes, sorted by (receiver, sender)."""
    _, receivers, by_receiver = graph.arcs
    return by_receiver[slice(*np.searchsorted(receivers[by_receiver], [nodes.start, nodes.stop]))]


@dataclass(frozen=True)
class Route:
    """The rows that go to, or come from, one peer, in the order in which they travel.

    Attributes:
        peer: the rank of the other process.
        positions: of the rows at the sender.
    """

    peer: int
    positions: torch.Tensor

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """(first, count) of consecutive positions: such rows can be sent without copying them."""
        positions = self.positions.numpy()
        bounds = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        return [(int(positions[a]), b - a) for a, b in pairwise(bounds)]

    def is_packed(self, row_bytes: int) -> bool:
        """Whether rows that are not adjacent are copied into one message; both ends see the same route."""
        return len(self.runs) > 1 and row_bytes < LONG_ROW


@dataclass(frozen=True)
class Routes:
    """Rows between this process and its peers.

    Attributes:
        sends: the rows that each peer needs.
        receives: the rows of each peer that are needed here; put one after the other.
        messages: how many rows travel between all nodes.
    """

    sends: tuple[Route, ...]
    receives: tuple[Route, ...]
    messages: int

    @cached_property
    def arriving(self) -> int:
        """r, how many rows arrive."""
        return sum(len(route.positions) for route in self.receives)


@dataclass(frozen=True)
class MixingRoutes(Routes):
    """One gossip step as this process sees it: a row is sent once to a peer, however many of its nodes hear it.

    Attributes:
        messages: rows that all nodes send to other nodes; if W is known in part, those that the owned ones send.
        senders: the nodes that the rows that arrive are from.
        nodes: the owned nodes.
        terms: for each owned node the position and the weight of every row that it hears, its own included, senders
            ascending.
        averages: whether every process has one row, and all give and get the same share: an average.
    """

    senders: IntArray
    nodes: range
    terms: tuple[Terms, ...]
    averages: bool

    @cached_property
    def moves(self) -> tuple[Terms, ...]:
        """The terms of W − I: what has to be added to the own row of each node."""
        return tuple(
            tuple((position, weight - (position == own)) for position, weight in terms if weight != (position == own))
            for own, terms in enumerate(self.terms)
        )


@dataclass(frozen=True)
class ExchangeRoutes(Routes):
    """One row per arc, as this process sees it.

    Attributes:
        sources: the owned node that sends each of the outgoing rows.
        inside: for arcs between owned nodes, the positions among these rows, and among all rows for owned nodes.
        outside: the positions there of the rows that arrive.
    """

    sources: IntArray
    inside: tuple[torch.Tensor, torch.Tensor]
    outside: torch.Tensor


class Router:
    """Makes the routes of one process out of `world`, for matrices on any graph with n nodes."""

    def __init__(self, n: int, rank: int, world: int) -> None:
        self.nodes, self.rank = block(n, rank, world), rank
        self.starts = np.array([block(n, peer, world).start for peer in range(world)])
        self._entries_of = lru_cache(1)(entries_of)  # a policy has new weights, not another graph

    def mixing(self, W: MixingMatrix) -> MixingRoutes:
        """The routes of the non-zero weights in the rows and columns of the owned nodes; no other weight is read."""
        n, nodes, pattern = W.n, self.nodes, W.graph.pattern
        used = (W.weights != 0) | (pattern.rows == pattern.cols)
        outgoing, incoming = (entries[used[entries]] for entries in self._entries_of(W.graph, nodes))
        senders, receivers = pattern.rows[outgoing], pattern.cols[outgoing]
        peers = self._owner(receivers)
        away = np.unique(peers[peers != self.rank] * n + senders[peers != self.rank])  # each row once per peer
        heard = pattern.rows[incoming]
        arriving = np.unique(heard[~self._owns(heard)])
        origins = self._owner(arriving)
        positions = np.where(self._owns(heard), heard - nodes.start, len(nodes) + np.searchsorted(arriving, heard))
        return MixingRoutes(
            sends=_by_peer(away // n, away % n - nodes.start),
            receives=_by_peer(origins, arriving - self.starts[origins]),
            messages=W.messages if W.whole else int(np.count_nonzero(senders != receivers)),
            senders=arriving,
            nodes=nodes,
            terms=terms_by_receiver(pattern.cols[incoming], nodes, positions, W.weights[incoming]),
            averages=W.is_average and 2 < n == len(self.starts),
        )

    def exchange(self, graph: Graph) -> ExchangeRoutes:
        """The routes of one row per arc."""
        senders, receivers, by_receiver = graph.arcs
        own = self.rank
        firsts = np.searchsorted(senders, self.starts)  # of the arcs out of the nodes of each process
        first, last = np.searchsorted(senders, [self.nodes.start, self.nodes.stop])
        leaving = by_receiver[(by_receiver >= first) & (by_receiver < last)]  # by (j, i), as they will arrive
        peers = self._owner(receivers[leaving])
        arriving = arriving_at(self.nodes, graph)
        origins = self._owner(senders[arriving])
        outside = np.argsort(origins, kind="stable")
        outside = outside[origins[outside] != own]
        return ExchangeRoutes(
            sends=_by_peer(peers[peers != own], leaving[peers != own] - first),
            receives=_by_peer(origins[outside], (arriving - firsts[origins])[outside]),
            messages=len(senders),
            sources=senders[first:last],
            inside=(torch.from_numpy(leaving[peers == own] - first), torch.from_numpy(np.flatnonzero(origins == own))),
            outside=torch.from_numpy(outside),
        )

    def _owns(self, nodes: IntArray) -> BoolArray:
        return (nodes >= self.nodes.start) & (nodes < self.nodes.stop)

    def _owner(self, nodes: IntArray) -> IntArray:
        return np.searchsorted(self.starts, nodes, side="right") - 1


def _by_peer(peers: IntArray, positions: IntArray) -> tuple[Route, ...]:
    """One route per peer, from peers in ascending order."""
    bounds = np.flatnonzero(np.diff(peers, prepend=-1, append=-1)).tolist()
    return tuple(Route(int(peers[a]), torch.tensor(positions[a:b])) for a, b in pairwise(bounds))
