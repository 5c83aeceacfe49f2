"""What a policy costs on the network, and how much disagreement it leaves, before any training.

Legend: X (n, 64) rows of noise, or (n, 1024) rows of parameters if they are rounded for the message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import Links, SimulatedNetwork
from mixwise.network.traffic import average_bytes
from mixwise.network.wire import Wire, as_wire_dtype
from mixwise.policies.choice import PolicyLike, policy_for
from mixwise.protocols import Algorithm, Context, Needs, Round
from mixwise.seeding import generator

_COLUMNS, _ROUNDED_COLUMNS = 64, 1024  # rounded rows have four blocks, each with its own scale


@dataclass(frozen=True)
class Forecast:
    """A mixing of a policy, averaged over many.

    Attributes:
        rounds: messages that follow each other.
        rows: rows that a node sends.
        bytes: bytes that a node sends, sketches and offers included.
        seconds: how long the messages take one after the other; 0 without links.
        disagreement: ‖X − X̄‖²/nd after a mixing in the steady state, if every step adds independent noise of variance 1
            to every node; 0 for a full average. Of rounded rows it includes what rounding leaves.
    """

    rounds: float
    rows: float
    bytes: float
    seconds: float
    disagreement: float


def forecast(
    policy: PolicyLike, graph: Graph, row_bytes: float, links: Links | None = None, *,
    needs: Needs | None = None, mixings: int = 60, wire_dtype: torch.dtype | str | None = None, step_size: float = 0.03,
) -> Forecast:  # fmt: skip
    """Return what a policy would cost on a graph, and what it would leave, for rows of so many bytes on the wire.

    The policy may look at the rows that are mixed, not at updates. Costs are averaged over all mixings, the
    disagreement over the second half of them. An average over all nodes is counted as an all-reduce, and never rounded.

    Args:
        policy, graph: what is forecast, and where.
        row_bytes: bytes of a row on the wire.
        links: how long messages take.
        needs: those of the algorithm, if it has any.
        mixings: how many are simulated.
        wire_dtype: torch.bfloat16 or torch.int8, if rows are rounded for the message.
        step_size: root mean square of a step's noise relative to that of the parameters. What rounding leaves does not
            depend on the step, and is the larger beside it the smaller the step is.

    >>> from mixwise.graphs import ring
    >>> round(forecast("metropolis-hastings", ring(4), 1000).rows)
    2
    """
    if not 0 < step_size < math.inf:
        raise MixingError(f"step_size = {step_size}; give the size of a step relative to the parameters, such as 0.03")
    network = SimulatedNetwork(graph, links)
    needs = needs or Needs()
    chosen = policy_for(policy, graph, needs)
    state = chosen.init(Context(graph, needs=needs))
    X, wire = _start(graph.n, as_wire_dtype(wire_dtype), step_size)
    rounds = rows = 0
    left = []
    for t in range(mixings):
        X += torch.randn(X.shape, generator=generator(0, "forecast", t), dtype=X.dtype)
        plan = chosen.plan(Round(t, X, X, algorithm=Algorithm()), state, network)
        for W in plan.params:
            X = _mixed(X, W, wire)
            rows += average_bytes(graph.n, 1) if W.is_average else W.messages
            network.traffic.seconds += 0 if links is None else _seconds(W, graph, links, row_bytes)
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


def _start(n: int, dtype: torch.dtype | None, step_size: float) -> tuple[torch.Tensor, Wire | None]:
    """The rows before the first step, in units of its noise, equal on all nodes; and their form on the wire.

    How large they are matters only if they are rounded.
    """
    if dtype is None:
        return torch.zeros(n, _COLUMNS, dtype=torch.float64), None
    row = torch.randn(1, _ROUNDED_COLUMNS, generator=generator(0, "forecast rows"), dtype=torch.float64) / step_size
    return row.repeat(n, 1), Wire(dtype, _ROUNDED_COLUMNS)


def _mixed(X: torch.Tensor, W: MixingMatrix, wire: Wire | None) -> torch.Tensor:
    """Wᵀ X, or X + (W − I)ᵀ Q(X) of rounded rows."""
    sent = X if wire is None or W.is_average else wire.rounded(X)
    mixed = torch.from_numpy(W.incoming @ sent.numpy())
    return mixed if sent is X else X + mixed - sent


def _seconds(W: MixingMatrix, graph: Graph, links: Links, row_bytes: float) -> float:
    if W.is_average:
        return links.average(graph, row_bytes)
    senders, receivers = W.graph.pattern.rows, W.graph.pattern.cols
    used = (W.weights != 0) & (senders != receivers)
    return links.round(senders[used], receivers[used], row_bytes)
