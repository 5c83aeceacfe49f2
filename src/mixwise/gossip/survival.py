"""Gossip that goes on when a rank is lost: who is left forms a new group, and makes anew what depended on the old one.

A mixing that failed has not happened, but it counts. Ranks may have come to different mixings when they notice a loss:
all go on at the largest, so whoever is behind leaves out as many mixings as it lags.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mixwise.algorithms import Algorithm
from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.network.membership import Membership, current_backend
from mixwise.network.survivors import keep_counting, remaining_graph
from mixwise.policies import Policy

Place = tuple[int, int]  # mixings done, and answers of all ranks together (average, metrics) since the last of them


class Survival:
    """What a rank needs to go on without those that are lost.

    Args:
        graph: of all ranks, as it was at the start.
        algorithm: as it was handed over.
        policy: makes the policy for a graph.
        connect: makes the network of the default process group.
        timeout: seconds for the operations of a new process group.
    """

    def __init__(
        self,
        graph: Graph,
        algorithm: Algorithm,
        policy: Callable[[Graph], Policy],
        connect: Callable[[Graph], Network],
        timeout: float,
    ) -> None:
        self.membership = Membership.from_environment()
        self.graph, self.policy, self.connect, self.timeout = graph, policy, connect, timeout
        self._algorithm, self._backend = algorithm, current_backend()
        self._safe: torch.Tensor | None = None
        self.behind = 0  # mixings to leave out until this rank is where the others are

    def keep(self, X: torch.Tensor) -> None:
        """Before a mixing: a copy of the row, since an algorithm may change it before all messages have arrived."""
        if self._safe is None or self._safe.shape != X.shape:
            self._safe = torch.empty_like(X)
        self._safe.copy_(X)

    def restore(self, X: torch.Tensor) -> None:
        """After a mixing that failed."""
        assert self._safe is not None  # keep was called
        X.copy_(self._safe)

    def reform(self, at: Place, before: Network) -> tuple[Place, Network, Policy, Algorithm]:
        """With the ranks that are left: where they go on, and network, policy and algorithm made anew."""
        while True:
            generation = self.membership.reform(at, self.timeout, self._backend)
            graph = remaining_graph(self.graph, generation.members)
            t, asked = generation.at
            self.behind += t - at[0]
            at = t, asked
            try:
                network = self.connect(graph)
            except NetworkError:  # another one is lost
                continue
            keep_counting(vars(before.traffic), before.graph.n, network)
            return at, network, self.policy(graph), self._algorithm


def graph_in(value: object, depth: int = 6) -> bool:
    """Whether a policy, or a part of it, holds a graph or weights for one: then it is of no use for another graph."""
    if isinstance(value, Graph | MixingMatrix):
        return True
    if depth == 0:
        return False
    parts = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return any(graph_in(part, depth - 1) for part in parts)
