"""Gossip that survives the loss of a rank: the remaining ranks form a new group and rebuild what depended on the old.

A failed mixing is skipped but counted. Ranks may notice a loss at different mixings: all continue at the largest, so a
lagging rank skips as many mixings as it lags.
"""

from __future__ import annotations

from mixwise.errors import NetworkError
from mixwise.gossip.start import Options, connected
from mixwise.graphs import Graph
from mixwise.network.membership import Membership, current_backend
from mixwise.network.survivors import keep_counting, remaining_graph
from mixwise.policies.choice import PolicyLike, policy_for
from mixwise.protocols import Needs, Network, Policy

Place = tuple[int, int]  # mixings done, and collective answers (average, metrics) since the last of them


class Survival:
    """Rebuilds the group, the network and the policy without the ranks that are lost.

    Args:
        graph: of all ranks, as it was at the start.
        policy: makes the weights for a graph.
        needs: of the algorithm.
        options, timeout: of the network.
    """

    def __init__(self, graph: Graph, policy: PolicyLike, needs: Needs, options: Options, timeout: float) -> None:
        self.membership = Membership.from_environment()
        self._graph, self._policy, self._needs = graph, policy, needs
        self._options, self._timeout, self._backend = options, timeout, current_backend()

    def reform(self, at: Place, before: Network) -> tuple[Place, Network, Policy]:
        """Form a group with the ranks that are left; return where they continue, and a new network and policy."""
        while True:
            generation = self.membership.reform(at, self._timeout, self._backend)
            graph = remaining_graph(self._graph, generation.members)
            at = generation.at[0], generation.at[1]
            try:
                network = connected(graph, self._options, self._timeout)
            except NetworkError:  # another one is lost
                continue
            keep_counting(vars(before.traffic), before.graph.n, network)
            return at, network, policy_for(self._policy, graph, self._needs)
