"""RelaySGD: sums travel along a spanning tree, so that every node averages all others, far ones late.

    m_{i→j}⁺ = x′_i + Σ_{k ≠ j} m_{k→i};  c_{i→j}⁺ = 1 + Σ_{k ≠ j} c_{k→i}        (k, j: neighbors of i in the tree)
    x_i⁺ = (x′_i + Σ_j m_{j→i}⁺) / (1 + Σ_j c_{j→i}⁺)                            (Vogels et al. 2021)

After as many steps as the tree's diameter every node holds a mean over all n nodes, in which node j, h hops away, is as
it was h − 1 steps ago. When the plan has another tree, the relay starts anew on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mixwise.algorithms.base import Algorithm, Belongs
from mixwise.errors import TrainingError
from mixwise.graphs import Graph
from mixwise.network import Network
from mixwise.policies import Plan
from mixwise.policies.plan import Gives


class RelaySGD(Algorithm):
    """One message per direction and edge of the tree and step; its memory is what arrived last, 2 (n − 1) rows."""

    mixes_with: Gives = "a tree"
    belongs: Mapping[str, Belongs] = {"arrived": "arcs", "counts": "arcs", "tree": "all"}

    def check_buffers(self) -> None:
        """There are no weights to mix them with."""
        raise TrainingError(
            "RelaySGD has no mixing weights for the nodes' buffers (BatchNorm statistics and the like); "
            "take buffers: local, or a model without them"
        )

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Pass on what arrived, with the own row added, and average what is there."""
        if plan.tree is None:
            raise TrainingError("RelaySGD needs a policy that gives a spanning tree: FixedTree, HeterogeneityAwareTree")
        tree = plan.tree
        owners = _owners(tree, network.nodes).to(X.device)  # of each arc out of the owned nodes, sorted: its position
        if self._is_new(tree):
            _check_tree_of(network.graph, tree)
            self.state["arrived"] = X.new_zeros(len(owners), X.shape[1])
            self.state["counts"] = torch.zeros(len(owners), 1, dtype=torch.float64, device=X.device)
            self.state["tree"] = torch.from_numpy(tree.edge_array.copy())
        arrived, counts = self.state["arrived"], self.state["counts"]
        # What node i sends to j: its own row and all that arrived, except what came from j.
        sums, total = _with_arrived(X_prime, arrived, counts, owners)
        arrived = network.exchange(sums[owners].sub_(arrived), tree)
        counts = network.exchange(total[owners] - counts, tree)
        self.state["arrived"], self.state["counts"] = arrived, counts
        sums, total = _with_arrived(X_prime, arrived, counts, owners)
        return sums.div_(total.to(sums.dtype))

    def arcs_into(self, nodes: range) -> list[int]:
        """The neighbors of each node in the tree."""
        if "tree" not in self.state:
            return super().arcs_into(nodes)
        degrees = self.state["tree"].flatten().bincount(minlength=nodes.stop)
        return [int(degrees[node]) for node in nodes]

    def _is_new(self, tree: Graph) -> bool:
        known = self.state.get("tree")
        return known is None or not np.array_equal(known.cpu().numpy(), tree.edge_array)


def _check_tree_of(graph: Graph, tree: Graph) -> None:
    """Refuse a tree for other nodes, or one along edges that are not there."""
    if tree.n != graph.n:
        raise TrainingError(f"the tree has {tree.n} nodes, the graph {graph.n}; take a spanning tree of that graph")
    missing = sorted(set(tree.edges) - set(graph.edges))
    if missing:
        raise TrainingError(
            f"the tree relays along {missing[0]}, which is no edge of the graph; "
            f"take a spanning tree of that graph: spanning_tree(graph)"
        )


def _owners(tree: Graph, nodes: range) -> torch.Tensor:
    """For every arc of the tree out of an owned node, sorted by (i, j), the position of its node among the owned.

    An arc and its reverse belong to the same pair, so the list of arcs into a node, sorted by sender, is as long as the
    list of arcs out of it and has the same neighbors in the same order.
    """
    senders = tree.pattern.rows[tree.pattern.rows != tree.pattern.cols]
    here = (senders >= nodes.start) & (senders < nodes.stop)
    return torch.from_numpy(senders[here] - nodes.start)


def _with_arrived(
    rows: torch.Tensor, arrived: torch.Tensor, counts: torch.Tensor, owners: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each node's row and all that arrived at it, and how many rows that is."""
    sums = rows.clone().index_add_(0, owners, arrived)
    total = torch.ones(len(rows), 1, dtype=counts.dtype, device=counts.device).index_add_(0, owners, counts)
    return sums, total
