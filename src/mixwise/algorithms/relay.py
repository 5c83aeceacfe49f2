"""RelaySGD: sums travel along a spanning tree, so that every node averages all others, distant ones with a delay.

    m_{i→j}⁺ = x′_i + Σ_{k ≠ j} m_{k→i};  c_{i→j}⁺ = 1 + Σ_{k ≠ j} c_{k→i}        (k, j: neighbors of i in the tree)
    x_i⁺ = (x′_i + Σ_j m_{j→i}⁺) / (1 + Σ_j c_{j→i}⁺)                            (Vogels et al. 2021)

After as many steps as the tree's diameter every node holds a mean over all n nodes, in which node j, h hops away, is as
it was h − 1 steps ago. When the plan has another tree, the relay restarts on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.errors import TrainingError
from mixwise.graphs import Graph
from mixwise.parts import part
from mixwise.protocols import Algorithm, Needs, Network, Plan, Round, State


@part(
    "relay", title="RelaySGD", cite="Vogels et al. 2021",
    step="sums of X′ along a tree", sends="deg in the tree · d", condition="no W; a spanning tree",
)  # fmt: skip
@dataclass(frozen=True)
class RelaySGD(Algorithm):
    """One message per direction, tree edge and step; its memory is what arrived last, 2 (n − 1) rows."""

    needs = Needs(plan="a tree", buffers="none")

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Pass on the sums that arrived, with the node's own row added, and average them."""
        if plan.tree is None:
            raise TrainingError("RelaySGD needs a policy that provides a spanning tree: Tree")
        tree, X_prime = plan.tree, round.X_prime
        owners = _owners(tree, network.nodes).to(X_prime.device)  # of each arc out of the owned nodes: its position
        if state.graph != tree:
            _check_tree_of(network.graph, tree)
            state.graph = tree
            state.arcs["arrived"] = X_prime.new_zeros(len(owners), X_prime.shape[1])
            state.arcs["counts"] = torch.zeros(len(owners), 1, dtype=torch.float64, device=X_prime.device)
        arrived, counts = state.arcs["arrived"], state.arcs["counts"]
        # Node i sends to j its own row and all that arrived, except what came from j.
        sums, total = _with_arrived(X_prime, arrived, counts, owners)
        arrived = network.exchange(sums[owners].sub_(arrived), tree).rows
        counts = network.exchange(total[owners] - counts, tree).rows
        state.arcs["arrived"], state.arcs["counts"] = arrived, counts
        sums, total = _with_arrived(X_prime, arrived, counts, owners)
        torch.div(sums, total.to(sums.dtype), out=X_prime)


def _check_tree_of(graph: Graph, tree: Graph) -> None:
    """Reject a tree for other nodes, or one along edges that the graph does not have."""
    missing = sorted(set(tree.edges) - set(graph.edges))
    if tree.n != graph.n or missing:
        wrong = f"relays along {missing[0]}, no edge of the graph" if missing else f"has {tree.n} nodes, not {graph.n}"
        raise TrainingError(f"the tree {wrong}; use a spanning tree of that graph: spanning_tree(graph)")


def _owners(tree: Graph, nodes: range) -> torch.Tensor:
    """For every arc of the tree out of an owned node, sorted by (i, j), the position of its node among the owned.

    An arc and its reverse belong to the same pair, so the list of arcs into a node, sorted by sender, is as long as the
    list of arcs out of it and has the same neighbors in the same order.
    """
    senders = tree.arcs.senders
    here = (senders >= nodes.start) & (senders < nodes.stop)
    return torch.from_numpy(senders[here] - nodes.start)


def _with_arrived(
    rows: torch.Tensor, arrived: torch.Tensor, counts: torch.Tensor, owners: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each node's row and all that arrived at it, and how many rows that is."""
    sums = rows.clone().index_add_(0, owners, arrived)
    total = torch.ones(len(rows), 1, dtype=counts.dtype, device=counts.device).index_add_(0, owners, counts)
    return sums, total
