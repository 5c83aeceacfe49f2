"""Gossip that survives the loss of a rank: the remaining ranks form a new group and rebuild what depended on the old.

A failed mixing is skipped but counted. Ranks may notice a loss at different mixings: all continue at the largest, so a
lagging rank skips as many mixings as it lags.
"""

from __future__ import annotations

from collections.abc import Callable

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.membership import Membership, current_backend
from mixwise.network.survivors import keep_counting, remaining_graph
from mixwise.protocols import Network, Policy

Place = tuple[int, int]  # mixings done, and collective answers (average, metrics) since the last of them


class Survival:
    """What a rank needs to continue without the ranks that are lost.

    Args:
        graph: of all ranks, as it was at the start.
        policy: makes the policy for a graph.
        connect: makes the network of the default process group.
        timeout: seconds for the operations of a new process group.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Callable[[Graph], Policy],
        connect: Callable[[Graph], Network],
        timeout: float,
    ) -> None:
        self.membership = Membership.from_environment()
        self.graph, self.policy, self.connect, self.timeout = graph, policy, connect, timeout
        self._backend = current_backend()
        self.behind = 0  # mixings to skip until this rank is where the others are

    def reform(self, at: Place, before: Network) -> tuple[Place, Network, Policy]:
        """Form a group with the ranks that are left; return where they continue, and a new network and policy."""
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
            return at, network, self.policy(graph)


def graph_in(value: object, depth: int = 6) -> bool:
    """Whether a policy, or a part of it, holds a graph or weights for one, and so cannot serve another graph."""
    if isinstance(value, Graph | MixingMatrix):
        return True
    if depth == 0:
        return False
    parts = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return any(graph_in(part, depth - 1) for part in parts)
