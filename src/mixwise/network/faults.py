"""Faults in simulations: messages that are lost, links that fail for a while, nodes that are away or late.

All of them are functions of the seed and the step, drawn for each link and node by a hash: no table of n × n numbers,
nothing to save, and a resumed run has the same faults.

Legend: n nodes; rows (n, d); arcs i → j as arrays of senders and receivers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.simulated import Arrived, SimulatedNetwork
from mixwise.network.survivors import listed
from mixwise.network.traffic import Cargo, Packing, message_bytes
from mixwise.seeding import hashed, stream

BoolArray = npt.NDArray[np.bool_]
_STATES = {"off": True, "on": False}  # of a node, in a trace


@dataclass(frozen=True)
class Faults:
    """The faults of a simulated network; simulations with the same seed have the same ones.

    Args:
        message_loss: the share of messages that are lost. The rows that a link carries in one direction in one step
            arrive or get lost together; every sketch and offer is lost on its own.
        burst: the mean number of steps for which a link fails, losing everything; by default losses are independent.
        node_off: the share of the steps that a node is away. It then sends and receives nothing, and trains on alone.
        away: the mean number of steps until it returns; by default every step is drawn by itself.
        cyclic: nodes are away for `away` steps at a time in turn, without chance.
        trace: a CSV file with the columns step, node and state: from that step on, the node is off or on.
        stragglers: the share of the steps in which nothing from a node arrives in time.
        acknowledged: whether both ends of a link know what arrived. Two nodes then average only if the rows of both
            have arrived, with the same weight, (w_ij + w_ji)/2, so that the mean of all nodes is conserved. Otherwise a
            receiver uses its own row in place of one that is lost, and the mean drifts.
    """

    message_loss: float = 0.0
    burst: float | None = None
    node_off: float = 0.0
    away: float | None = None
    cyclic: bool = False
    trace: str | None = None
    stragglers: float = 0.0
    acknowledged: bool = True

    def __post_init__(self) -> None:
        for name in ("message_loss", "node_off", "stragglers"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: a share lies in [0, 1)")
        for rate, length in (("message_loss", "burst"), ("node_off", "away")):
            share, steps = getattr(self, rate), getattr(self, length)
            if steps is not None and not (share > 0 and steps * (1 - share) >= 1 - 1e-9):
                raise ConfigError(
                    f"{length} = {steps}: with {rate} = {share}, the mean number of steps is at least "
                    f"1 / (1 − {rate}) = {1 / (1 - share):.3g}, as for independent draws, and {rate} is above 0"
                )
        if self.cyclic and self.away is None:
            raise ConfigError("cyclic: true needs node_off and away, such as node_off: 0.1, away: 5")
        if self.trace is not None and self.node_off:
            raise ConfigError("trace and node_off both say which nodes are away; give one of them")

    def __bool__(self) -> bool:
        return self.message_loss > 0 or self.stragglers > 0 or self.nodes_leave

    @property
    def nodes_leave(self) -> bool:
        """Whether nodes may be away."""
        return self.node_off > 0 or self.trace is not None


class FaultyNetwork:
    """A simulated network with faults around another one, which does what is left to do.

    Lost rows: see `Faults.acknowledged`. With weights of kind "sender" (push-sum), a sender keeps the mass that was not
    acknowledged; without acknowledgment it is gone. Weights on a directed graph have no second direction that could be
    left out together with the first: there the receiver's own row replaces a lost one, and the mean drifts.
    In `exchange`, a lost row is 0 and a lost sketch NaN; sketches and offers count in both directions or in neither. In
    `gather`, a row that is lost is replaced by the mean of the others, for all nodes alike. An average over all nodes
    (all-reduce, local SGD) and cargo "agreement" lose nothing: they are repeated until every node has them.

    Traffic counts what was sent, whether it arrived or not; nodes that are away send nothing.

    Args:
        network: the network without faults.
        faults: the faults.
        seed: of the draws.
    """

    def __init__(self, network: SimulatedNetwork, faults: Faults, seed: int = 0) -> None:
        self.network, self.faults, self.seed = network, faults, seed
        self.graph, self.nodes, self.traffic, self.links = network.graph, network.nodes, network.traffic, network.links
        self._trace = None if faults.trace is None else read_trace(Path(faults.trace), network.graph.n)
        self._measuring = False
        self.step = None

    @property
    def step(self) -> int | None:
        """The step under way, which decides about the faults."""
        return self.network.step

    @step.setter
    def step(self, step: int | None) -> None:
        self.network.step, self._small, self._failed = step, 0, {}

    # --- the network ---
    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Wᵀ X with the weights of what arrives."""
        arriving = self._arriving(W, message_bytes(rows, packing))
        with self.network.uncounted():
            return self.network.mix(rows, arriving, out=out, packing=packing)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Arrived:
        """Start a gossip step with the weights of what will arrive."""
        arriving = self._arriving(W, message_bytes(rows, None))
        with self.network.uncounted():
            return self.network.start_mix(rows, arriving)

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = "parameters") -> torch.Tensor:
        """The messages in the order of their receivers; 0, or NaN for a sketch, where one is lost."""
        if cargo == "agreement":
            return self.network.exchange(messages, graph, cargo=cargo)
        arcs, small = graph.arcs, cargo == "sketches"
        lost = self._lost(graph, arcs.senders, arcs.receivers, small)
        self._count(arcs.senders, arcs.receivers, lost, messages.shape[1] * messages.element_size(), cargo)
        if small and not graph.directed:
            lost = lost | lost[arcs.by_receiver]  # of the opposite direction
        missing = torch.from_numpy(lost).to(messages.device)[:, None]
        nothing = float("nan") if small and messages.is_floating_point() else 0
        with self.network.uncounted():
            return self.network.exchange(messages.masked_fill(missing, nothing), graph, cargo=cargo)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all nodes, with the mean of those that arrive in place of the others."""
        gathered = self.network.gather(rows)
        if self._measuring:
            return gathered
        nodes = np.arange(self.graph.n)
        lost = down(nodes, self._now, self.faults.message_loss, None, self._next_small()) | self._away | self._late
        self.traffic.messages += len(lost)
        self.traffic.lost += int(lost.sum())
        missing = torch.from_numpy(lost).to(rows.device)
        mean = gathered[~missing].mean(dim=0) if not lost.all() else torch.zeros_like(gathered[0])
        return torch.where(missing[:, None], mean, gathered)

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean of all rows: nothing is lost."""
        return self.network.average(rows)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Traffic inside is not counted, and what is gathered is complete: it is measured, not sent."""
        before, self._measuring = self._measuring, True
        try:
            with self.network.uncounted():
                yield
        finally:
            self._measuring = before

    def figures(self) -> dict[str, Any]:
        """Return what a record holds about faults: the share of messages lost so far, and the nodes away now."""
        values: dict[str, Any] = {"messages_lost": self.traffic.lost / max(1, self.traffic.messages)}
        if self.faults.nodes_leave:
            away = np.flatnonzero(self._away).tolist()
            values |= {"nodes_away": len(away), "away": listed(away)}
        return values

    # --- what arrives ---
    def _arriving(self, W: MixingMatrix, size: int) -> MixingMatrix:
        """Count the messages of a gossip step, and return the weights that are left; their sums need not be 1."""
        pattern, weights = W.graph.pattern, W.weights
        senders, receivers = pattern.rows, pattern.cols
        pairwise = self.faults.acknowledged and W.kind == "doubly" and not W.graph.directed
        if pairwise:  # by_column lists the entries of the opposite direction
            weights = (weights + weights[pattern.by_column]) / 2
        used = (senders != receivers) & (weights != 0)
        lost = self._lost(W.graph, senders, receivers, small=False) & used
        self._count(senders[used], receivers[used], lost[used], size, "parameters")
        if pairwise:
            lost = lost | lost[pattern.by_column]
        loops = np.flatnonzero(senders == receivers)
        left: FloatArray = np.where(lost, 0.0, weights)
        if W.kind == "doubly":
            np.add.at(left, loops[receivers[lost]], weights[lost])
        elif self.faults.acknowledged:
            np.add.at(left, loops[senders[lost]], weights[lost])
        return MixingMatrix.unchecked(W.graph, left, W.kind, W.tolerance)

    def _lost(self, graph: Graph, senders: IntArray, receivers: IntArray, small: bool) -> BoolArray:
        """Which messages between these nodes do not arrive; entries with sender = receiver have no meaning."""
        faults, n = self.faults, self.graph.n
        if small and faults.burst is None:
            links = down(senders * n + receivers, self._now, faults.message_loss, None, self._next_small())
        else:
            key = graph, len(senders)
            if key not in self._failed:
                seed = stream(self.seed, "links")
                self._failed[key] = down(senders * n + receivers, self._now, faults.message_loss, faults.burst, seed)
            links = self._failed[key]
        away = self._away
        lost: BoolArray = links | away[senders] | away[receivers] | self._late[senders]
        return lost

    def _next_small(self) -> int:
        """The stream of the next small messages of this step."""
        self._small += 1
        return stream(self.seed, "small messages", self._small)

    def _count(self, senders: IntArray, receivers: IntArray, lost: BoolArray, size: int, cargo: Cargo) -> None:
        """Count messages of so many bytes, and the time until the last of them would arrive."""
        sent: BoolArray = ~self._away[senders]
        self.traffic.add(cargo, int(sent.sum()) * size)
        self.traffic.messages += int(sent.sum())
        self.traffic.lost += int((lost & sent).sum())
        if self.links is not None:
            self.traffic.seconds += self.links.round(senders[sent], receivers[sent], size)

    # --- nodes ---
    @property
    def _now(self) -> int:
        return self.step or 0

    @property
    def _away(self) -> BoolArray:
        """Which nodes are away."""
        faults, nodes, t = self.faults, np.arange(self.graph.n), self._now
        if self._trace is not None:
            return self._trace.away(t)
        if faults.cyclic and faults.away is not None:
            period = round(faults.away / faults.node_off)
            turn: BoolArray = (t + nodes * period // self.graph.n) % period < faults.away
            return turn
        return down(nodes, t, faults.node_off, faults.away, stream(self.seed, "away"))

    @property
    def _late(self) -> BoolArray:
        """Which nodes' messages come too late."""
        return down(np.arange(self.graph.n), self._now, self.faults.stragglers, None, stream(self.seed, "late"))


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


# --- traces ---
@dataclass(frozen=True)
class Trace:
    """When nodes leave and return: arrays sorted by step."""

    n: int
    steps: IntArray
    nodes: IntArray
    off: BoolArray

    def away(self, step: int) -> BoolArray:
        """Which nodes are away in a step."""
        last = np.searchsorted(self.steps, step, side="right")
        state = np.zeros(self.n, dtype=bool)
        state[self.nodes[:last]] = self.off[:last]  # of several entries of a node, the last one counts
        return state


def read_trace(path: Path, n: int) -> Trace:
    """Read a CSV file with the columns step, node and state (off or on)."""
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
    return Trace(n, steps, nodes, off.astype(bool))
