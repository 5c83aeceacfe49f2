"""Faults in simulations: messages that are lost, links that fail for a while, nodes that are away, late or hostile.

All of them are functions of the seed and the step, drawn for each link and node by a hash: no table of n × n numbers,
nothing to save, and a resumed run has the same faults. `FaultyNetwork` lets them happen.

Hostile nodes (`corrupt`) send corrupted messages. Their own rows are trained and mixed as usual; their
messages depend on the seed, the step and the rows only.

Legend: n nodes; A messages as they arrive, sorted by (receiver, sender).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.network.values import BoolArray
from mixwise.parts import Positive, Unit
from mixwise.seeding import generator, hashed, stream

Corruption: TypeAlias = Literal["noise", "flip", "dissensus", "nan"]
_STATES = {"off": 1, "on": 0}  # of a node, in a trace
_AWAY = 2.0  # dissensus: 1 undoes what honest neighbors contribute to a gossip step, more drives them apart


@dataclass(frozen=True)
class Faults:
    """The faults of a simulated network; simulations with the same seed have the same ones.

    Args:
        message_loss: the share of messages that are lost, each by itself. Rows that a link carries right after each
            other in the same direction, such as a row and its mass in push-sum, are one message.
        burst: the mean number of steps for which a link fails, losing everything; by default links never fail.
        node_off: the share of the steps that a node is away. It then sends and receives nothing, and trains on alone.
        away: the mean number of steps until it returns; by default every step is drawn by itself.
        cyclic: nodes are away for `away` steps at a time in turn, without chance.
        trace: a CSV file with the columns step, node and state: from that step on, the node is off or on.
        stragglers: the share of the steps in which nothing from a node arrives in time.
        acknowledged: whether both ends of a link know what arrived. Two nodes then average only if the rows of both
            have arrived, with the same weight, (w_ij + w_ji)/2, so that the mean of all nodes is conserved. Otherwise a
            receiver uses its own row in place of one that is lost, and the mean drifts.
        corrupt: nodes that send corrupted messages, by kind: {"noise": [3, 7]}, or how many, drawn by the
            seed. "noise": standard normal numbers; "flip": their gradients are sign-flipped; "dissensus": rows that
            drive each receiver away from its honest neighbors; "nan": NaN. Records are about the other nodes.
    """

    message_loss: Unit = 0.0
    burst: Positive | None = None
    node_off: Unit = 0.0
    away: Positive | None = None
    cyclic: bool = False
    trace: str | None = None
    stragglers: Unit = 0.0
    acknowledged: bool = True
    corrupt: Mapping[Corruption, int | list[int]] | None = None

    def __post_init__(self) -> None:
        for name in ("message_loss", "node_off", "stragglers"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: a share lies in [0, 1)")
        for rate, length in (("message_loss", "burst"), ("node_off", "away")):
            share, steps = getattr(self, rate), getattr(self, length)
            if steps is not None and not (share > 0 and steps * (1 - share) >= 1 - 1e-9):
                least = f"at least 1 / (1 − {rate}) = {1 / (1 - share):.3g} steps, the mean length of independent draws"
                raise ConfigError(f"{length} = {steps} with {rate} = {share}: give {rate} above 0, and {least}")
        if self.cyclic and self.away is None:
            raise ConfigError("cyclic: true needs node_off and away, such as node_off: 0.1, away: 5")
        if self.trace is not None and self.node_off:
            raise ConfigError("trace and node_off both say which nodes are away; give one of them")

    def __bool__(self) -> bool:
        return self.lose_messages or bool(self.corrupt)

    @property
    def lose_messages(self) -> bool:
        """Whether messages may not arrive."""
        return self.message_loss > 0 or self.stragglers > 0 or self.nodes_leave

    @property
    def nodes_leave(self) -> bool:
        """Whether nodes may be away."""
        return self.node_off > 0 or self.trace is not None


def down(items: IntArray, step: int, rate: float, length: float | None, seed: int) -> BoolArray:
    """Whether each item is down in a step: a share `rate` of all steps, for `length` steps at a time on average.

    The chain of Gilbert and Elliott, as a function of the step. In every step, an item goes down with probability a
    and up with probability b, whatever its state; otherwise it stays as it is. So its state is the outcome of the last
    step that decided. Without `length`, every step decides: a = rate, b = 1 − rate.
    """
    found = np.zeros(len(items), dtype=bool)
    if rate == 0:
        return found
    b = 1 - rate if length is None else 1 / length
    a = rate * b / (1 - rate)  # a / (a + b) = rate
    undecided = np.arange(len(items))
    while len(undecided):
        if step < 0:  # before the first step: in the long run
            a, b = rate, 1 - rate
        draws = hashed(items[undecided], stream(seed, max(step, -1))) * 2.0**-64
        found[undecided] = draws < a
        undecided = undecided[(draws >= a) & (draws < 1 - b)]
        step -= 1
    return found


def read_trace(path: Path, n: int) -> tuple[IntArray, IntArray, IntArray]:
    """Read a CSV file with the columns step, node and state (off or on).

    Returns the steps, the nodes, and whether each leaves (1) or returns (0), sorted by step.
    """
    try:
        lines = list(csv.DictReader(path.read_text("utf-8").splitlines(), strict=True))
        found = sorted((int(line["step"]), int(line["node"]), _STATES[line["state"]]) for line in lines)
        if any(node not in range(n) for _, node, _ in found):
            raise ValueError(f"a node is not one of 0 to {n - 1}")
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"trace {path}: {error}; write lines such as 10,3,off below a first line step,node,state"
        ) from None
    steps, nodes, off = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return steps, nodes, off


# --- hostile nodes ---
class HostileNodes:
    """The hostile nodes of a simulation and what they send.

    Args:
        corrupt: for each kind, the nodes, or how many, which are then drawn by the seed.
        graph: the communication graph.
        seed: of all draws.

    Attributes:
        kinds: the nodes of each kind.
        honest: the other nodes.
    """

    def __init__(self, corrupt: Mapping[Corruption, int | list[int]] | None, graph: Graph, seed: int) -> None:
        self.graph, self.seed = graph, seed
        self.begin(0)
        given = corrupt or {}
        named = [node for nodes in given.values() if not isinstance(nodes, int) for node in nodes]
        free = [int(i) for i in np.argsort(hashed(np.arange(graph.n), stream(seed, "hostile"))) if i not in named]
        count = len(named) + sum(nodes for nodes in given.values() if isinstance(nodes, int))
        if len(set(named)) < len(named) or not set(named) <= set(range(graph.n)) or not 0 <= count < graph.n:
            raise ConfigError(
                f"faults.corrupt = {dict(given)}: give a number of nodes, or a list of different nodes from 0 to "
                f"{graph.n - 1}, and leave at least one honest"
            )
        self.kinds: dict[str, list[int]] = {
            kind: sorted(free.pop() for _ in range(nodes)) if isinstance(nodes, int) else list(nodes)
            for kind, nodes in given.items()
        }
        bad = [node for nodes in self.kinds.values() for node in nodes]
        self.honest: IntArray = np.setdiff1d(np.arange(graph.n), bad)

    def begin(self, step: int) -> None:
        """Begin a step; the messages depend on it, and on how many calls came before in it."""
        self._step, self._calls = step, 0

    def turn_gradients(self, G: torch.Tensor) -> None:
        """Turn the gradients (n, d) of nodes whose updates are sign-flipped, in place: they train uphill."""
        G[self.kinds.get("flip", [])] *= -1

    def replaced(self, rows: torch.Tensor, senders: IntArray) -> torch.Tensor:
        """Return rows with those from hostile senders replaced, in a new tensor if there are any."""
        if not self.kinds:
            return rows
        rows, self._calls = rows.clone(), self._calls + 1
        draw = generator(self.seed, "noise", self._step, self._calls)
        for kind in (kind for kind in ("noise", "nan") if kind in self.kinds):
            theirs = torch.from_numpy(np.isin(senders, self.kinds[kind]))
            draws = torch.randn(int(theirs.sum()), rows.shape[1], generator=draw)
            rows[theirs] = draws.to(rows) if kind == "noise" else float("nan")
        return rows

    def corrupted(self, arrived: torch.Tensor, graph: Graph) -> torch.Tensor:
        """Return the messages (A, w) that arrive along the arcs of a graph, those of hostile senders corrupted."""
        if not self.kinds:
            return arrived
        senders, receivers = (ends[graph.arcs.by_receiver] for ends in graph.arcs[:2])
        changed = self.replaced(arrived, senders)
        one = dict(zip(senders.tolist(), range(len(senders)), strict=True))  # a message of each node that sends one
        dissensus = np.isin(senders, self.kinds.get("dissensus", [])) & np.isin(receivers, senders)
        for e in np.flatnonzero(dissensus).tolist():
            x, near = arrived[one[int(receivers[e])]], self.graph.neighbors(int(receivers[e]))
            others = [one[i] for i in near if i in self.honest and i in one]
            share = _AWAY / max(1, sum(i not in self.honest for i in near))
            changed[e] = x - share * (arrived[others] - x).sum(dim=0)
        return changed
