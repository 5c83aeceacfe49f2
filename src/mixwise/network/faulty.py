"""A simulated network with faults: what arrives, and what stands in for what does not.

Legend: n nodes; rows (n, d); arcs i → j as arrays of senders and receivers.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixwise.errors import NetworkError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.faults import Faults, HostileNodes, down, read_trace
from mixwise.network.measuring import Measuring
from mixwise.network.simulated import Arrived, SimulatedNetwork
from mixwise.network.survivors import listed
from mixwise.network.traffic import ROWS, Arrivals, Cargo, Packing, message_bytes
from mixwise.network.values import BoolArray, check_dtype
from mixwise.seeding import stream


@dataclass
class _Sent:
    """The messages of a step so far: how many, and where the last rows travelled."""

    number: int = 0
    along: MixingMatrix | Graph | None = None


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
        if not isinstance(network, SimulatedNetwork):
            raise NetworkError(f"network is {kind_of(network)}; pass a simulated one, SimulatedNetwork(graph)")
        if not isinstance(faults, Faults):
            raise NetworkError(f"faults is {kind_of(faults)}; pass what happens, such as Faults(message_loss=0.1)")
        self.network, self.faults, self.seed = network, faults, seed
        self.graph, self.nodes, self.traffic, self.links = network.graph, network.nodes, network.traffic, network.links
        self.wire_dtype = network.wire_dtype
        self._trace = None if faults.trace is None else read_trace(Path(faults.trace), network.graph.n)
        self._ids = np.arange(network.graph.n)
        self.hostile = HostileNodes(faults.corrupt, network.graph, seed)
        self._decide(0)

    @property
    def step(self) -> int | None:
        """The step under way."""
        return self.network.step

    def begin(self, step: int) -> None:
        """Begin a step: its faults are decided, and its messages numbered from 0."""
        self.network.begin(step)
        self._decide(step)

    def uncounted(self) -> FaultyNetwork:
        """Return this network with a counter of its own; messages have the same faults, and are numbered as here."""
        view = copy(self)
        view.network = self.network.uncounted()
        view.traffic = view.network.traffic
        return view

    def measuring(self) -> Measuring:
        """Return the view for measurements: nothing is lost, and only honest nodes count."""
        view = self.network.measuring()
        return view.of(self.hostile.honest) if self.hostile.kinds else view

    def _decide(self, step: int) -> None:
        self._now, self._sent = step, _Sent()
        self.hostile.begin(self._now)
        self._failed: dict[tuple[Graph, int], BoolArray] = {}  # with bursts: links, by a graph's arcs or entries
        self._away = self._nodes_away(self._now)
        self._late = down(self._ids, self._now, self.faults.stragglers, None, stream(self.seed, "late"))

    # --- the network ---
    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Wᵀ X with the weights of what arrives."""
        return self.start_mix(rows, W, packing).wait(out)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix, packing: Packing | None = None) -> Arrived:
        """Start a gossip step with the weights of what will arrive."""
        if self.hostile.kinds:
            raise TrainingError(
                "faults.corrupt: hostile nodes send each neighbor a row of its own, which push-sum and compressed "
                "messages cannot mix; use an algorithm such as dsgd, in Training or a GuardedNetwork"
            )
        check_dtype(rows)
        weights = self._arriving(W, self.network.row_bytes(rows, packing))
        return self.network.arrived(rows, W.graph, weights, packing)

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = ROWS) -> Arrivals:
        """Return the messages in the order of their receivers, 0 where one is lost."""
        if cargo.reliable:
            return self.network.exchange(messages, graph, cargo=cargo)
        arcs, mutual = graph.arcs, not graph.directed
        lost = self._lost(graph, arcs.senders, arcs.receivers, cargo.optional)
        size = message_bytes(messages, None) if cargo.optional else self.network.row_bytes(messages)
        self._count(arcs.senders, arcs.receivers, lost, size, cargo)
        if cargo.optional and mutual:
            lost = lost | lost[arcs.by_receiver]  # of the opposite direction
        rows = self.network.uncounted().exchange(messages, graph, cargo=cargo).rows
        if messages.is_floating_point():
            rows = self.hostile.corrupted(rows, graph)
        arriving = lost[arcs.by_receiver]
        rows.masked_fill_(torch.from_numpy(arriving).to(rows.device)[:, None], 0)
        return Arrivals(rows, arriving, arriving | lost if mutual and self.faults.acknowledged else None)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all nodes, with the mean of those that arrive in place of the others."""
        gathered = self.network.gather(rows)
        if gathered.is_floating_point():
            gathered = self.hostile.replaced(gathered, self._ids)
        self._sent.number += 1
        lost = self._drawn(self._ids) | self._away | self._late
        self.traffic.messages += len(lost)
        self.traffic.lost += int(lost.sum())
        missing = torch.from_numpy(lost).to(rows.device)
        heard = gathered[~missing & torch.isfinite(gathered).all(dim=1)]  # NaN would be blamed on a node that was lost
        mean = heard.mean(dim=0) if len(heard) else torch.zeros_like(gathered[0])
        return torch.where(missing[:, None], mean, gathered)

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean of all rows: nothing is lost."""
        return self.network.average(self.hostile.replaced(rows, self._ids))

    def figures(self) -> dict[str, Any]:
        """Return what a record holds about faults: the share of messages lost so far, and the nodes away now."""
        values: dict[str, Any] = {"messages_lost": self.traffic.lost / max(1, self.traffic.messages)}
        if self.faults.nodes_leave:
            away = np.flatnonzero(self._away).tolist()
            values |= {"nodes_away": len(away)} | ({"away": listed(away)} if away else {})
        if self.hostile.kinds:
            values["hostile"] = listed(sorted(set(self._ids.tolist()) - set(self.hostile.honest.tolist())))
        return values

    # --- what arrives ---
    def _arriving(self, W: MixingMatrix, size: int) -> FloatArray:
        """Count the messages of a gossip step, and return the weights that are left; their sums need not be 1."""
        pattern, weights = W.graph.pattern, W.weights
        senders, receivers = pattern.rows, pattern.cols
        pairwise = self.faults.acknowledged and W.kind == "doubly" and not W.graph.directed
        if pairwise:  # by_column lists the entries of the opposite direction
            weights = (weights + weights[pattern.by_column]) / 2
        used = (senders != receivers) & (weights != 0)
        lost = self._lost(W, senders, receivers) & used
        self._count(senders[used], receivers[used], lost[used], size, ROWS)
        if pairwise:
            lost = lost | lost[pattern.by_column]
        loops = np.flatnonzero(senders == receivers)
        left: FloatArray = np.where(lost, 0.0, weights)
        if W.kind == "doubly":
            np.add.at(left, loops[receivers[lost]], weights[lost])
        elif self.faults.acknowledged:
            np.add.at(left, loops[senders[lost]], weights[lost])
        return left

    def _lost(
        self, along: MixingMatrix | Graph, senders: IntArray, receivers: IntArray, small: bool = False
    ) -> BoolArray:
        """Which messages between these nodes do not arrive; entries with sender = receiver have no meaning."""
        links = senders * self.graph.n + receivers
        if self.faults.burst is None:
            if small or along is not self._sent.along:  # what follows along the same arcs is part of the same message
                self._sent.number += 1
            self._sent.along = None if small else along
            failed = self._drawn(links)
        else:  # the same in all rounds of a step; drawing it again would take longer than mixing 16 nodes
            key = along.graph if isinstance(along, MixingMatrix) else along, len(senders)
            if key not in self._failed:
                rate, burst = self.faults.message_loss, self.faults.burst
                self._failed[key] = down(links, self._now, rate, burst, stream(self.seed, "links"))
            failed = self._failed[key]
        lost: BoolArray = failed | self._away[senders] | self._away[receivers] | self._late[senders]
        return lost

    def _drawn(self, items: IntArray) -> BoolArray:
        """Which of the messages under way are lost, each by itself."""
        return down(items, self._now, self.faults.message_loss, None, stream(self.seed, "messages", self._sent.number))

    def _count(self, senders: IntArray, receivers: IntArray, lost: BoolArray, size: int, cargo: Cargo) -> None:
        """Count messages of so many bytes, and the time until the last of them would arrive."""
        sent: BoolArray = ~self._away[senders]
        self.traffic.add(cargo, int(sent.sum()) * size)
        self.traffic.messages += int(sent.sum())
        self.traffic.lost += int((lost & sent).sum())
        if self.links is not None:
            self.traffic.seconds += self.links.round(senders[sent], receivers[sent], size)

    def _nodes_away(self, t: int) -> BoolArray:
        """Return which nodes are away in step t."""
        faults, nodes = self.faults, self._ids
        if self._trace is not None:
            steps, named, off = self._trace
            last, away = np.searchsorted(steps, t, side="right"), np.zeros(len(nodes), dtype=bool)
            away[named[:last]] = off[:last]  # of several entries of a node, the last one counts
            return away
        if faults.cyclic and faults.away is not None:
            period = round(faults.away / faults.node_off)
            turn: BoolArray = (t + nodes * period // len(nodes)) % period < faults.away
            return turn
        return down(nodes, t, faults.node_off, faults.away, stream(self.seed, "away"))
