"""What `Gossip.metrics` tells, the same on every rank; all of them must ask for it."""

from __future__ import annotations

import torch

from mixwise.protocols import Network, Plan
from mixwise.training.figures import mixing_figures


def metrics(X: torch.Tensor, G: torch.Tensor | None, plan: Plan | None, network: Network) -> dict[str, float]:
    """How far the nodes are apart, what the last mixing did about it, and what a node has sent.

    Args:
        X: the models, (m, d).
        G: the gradients of the last step, (m, d), if they are still there; they count only if all ranks have them.
        plan: the last mixing's.
        network: the way to the other nodes.
    """
    with network.uncounted():
        known = network.gather(torch.full((len(X), 1), int(G is not None), device=X.device))
    values = mixing_figures(X, G if bool(known.all()) else None, plan, network)
    n, traffic = network.graph.n, network.traffic
    return values | {"bytes_parameters": traffic.parameters / n, "bytes_sketches": traffic.sketches / n}
