"""What a policy costs on the network, and how much disagreement it leaves, before any training.

Legend: X (n, 64) rows of noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.network import Links, SimulatedNetwork
from mixwise.policies.choice import PolicyLike, policy_for
from mixwise.protocols import Algorithm, Context, Needs, Round
from mixwise.seeding import generator

_COLUMNS = 64


@dataclass(frozen=True)
class Forecast:
    """A mixing of a policy, averaged over many.

    Attributes:
        rounds: messages that follow each other.
        rows: rows that a node sends.
        bytes: bytes that a node sends, sketches and offers included.
        seconds: how long the messages take one after the other; 0 without links.
        disagreement: ‖X − X̄‖²/nd after a mixing in the steady state, if every step adds independent noise of variance 1
            to every node; 0 for a full average.
    """

    rounds: float
    rows: float
    bytes: float
    seconds: float
    disagreement: float


def forecast(
    policy: PolicyLike, graph: Graph, row_bytes: float, links: Links | None = None, *,
    needs: Needs | None = None, mixings: int = 60,
) -> Forecast:  # fmt: skip
    """Return what a policy would cost on a graph, and what it would leave, for rows of so many bytes on the wire.

    The policy may look at the rows that are mixed, not at updates. `needs` are those of the algorithm, if it has any;
    costs are averaged over all mixings, the disagreement over the second half of them.

    >>> from mixwise.graphs import ring
    >>> round(forecast("metropolis-hastings", ring(4), 1000).rows)
    2
    """
    network = SimulatedNetwork(graph, links)
    needs = needs or Needs()
    chosen = policy_for(policy, graph, needs)
    state = chosen.init(Context(graph, needs=needs))
    X = torch.zeros(graph.n, _COLUMNS, dtype=torch.float64)
    rounds = rows = 0
    left = []
    for t in range(mixings):
        X += torch.randn(X.shape, generator=generator(0, "forecast", t), dtype=X.dtype)
        plan = chosen.plan(Round(t, X, X, algorithm=Algorithm()), state, network)
        for W in plan.params:
            X = torch.from_numpy(W.incoming @ X.numpy())
            used = W.weights != 0
            senders, receivers = W.graph.pattern.rows[used], W.graph.pattern.cols[used]
            apart = senders != receivers
            rows += W.messages
            network.traffic.seconds += 0 if links is None else links.round(senders[apart], receivers[apart], row_bytes)
        rounds += len(plan.params)
        left.append(float((X - X.mean(dim=0)).square().mean()))
    mean_rows = rows / mixings / graph.n
    return Forecast(
        rounds / mixings,
        mean_rows,
        mean_rows * row_bytes + network.traffic.sketches / mixings / graph.n,
        network.traffic.seconds / mixings,
        float(np.mean(left[mixings // 2 :])),
    )
