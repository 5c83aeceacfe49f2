"""A network that keeps a broken or hostile node from ruining the others.

Every node compares what its neighbors sent with its own row before it mixes:

    x_j⁺ = x_j + Σ_i w_ij f_j(q_i − q_j)        q: the rows as they travel; W symmetrized, (w_ij + w_ji)/2

With f the identity this is Wᵀ X. Rows that must not be mixed at all (`mixwise.network.values`) stop the run or are left
out, as `on_bad` says.

Legend: m owned nodes; rows (m, d); A arcs into them, sorted by (receiver, sender); D (A, d) differences.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from mixwise.errors import NetworkError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.arcs import Arcs, Route, bounded, column, lower_median, route_of
from mixwise.network.faulty import FaultyNetwork
from mixwise.network.measuring import Measuring
from mixwise.network.traffic import ROWS, SKETCHES, Arrivals, Cargo, Packing, message_bytes
from mixwise.network.values import BoolArray, Cause, check_dtype, is_bad, lengths, rejected
from mixwise.network.wire import Wire
from mixwise.protocols import Network, State
from mixwise.sketch import CountSketch

Robust: TypeAlias = Literal["none", "clip"]
OnBad: TypeAlias = Literal["stop", "skip"]

_RADIUS, _FALL = 1.5, 3  # of `clip`: the radius in medians, and how fast the weight falls beyond it
_SKETCH = CountSketch(64)  # from which a node knows the distance of neighbors that send no row in a round


class GuardedNetwork:
    """A network around another one, whose nodes do not trust their neighbors.

    `clip` is self-centered clipping (He, Karimireddy and Jaggi 2022) with a radius that needs no tuning and a weight
    that falls off beyond it:  f(D) = D · min(1, τ/‖D‖)³,  τ = 1.5 times the lower median of the distances to all
    neighbors when the mixing begins. Neighbors that send no row in a round, as with pairs, send a sketch of 64 numbers
    once per mixing instead. A neighbor moves a node by w_ij τ at most, and by less the farther away it is. Where no
    difference is longer than τ, the mean of all nodes is conserved to rounding.

    With `clip`, a sketch that other nodes send to a policy cannot claim more than twice the median.

    Args:
        network: the network without a guard.
        robust: "none" or "clip".
        on_bad: whether a row with NaN, infinity or an absurd length stops the run with an error that names its sender,
            or is left out ("skip").

    Attributes:
        state: counts per node.
    """

    def __init__(self, network: Network, robust: Robust = "none", on_bad: OnBad = "stop") -> None:
        if not isinstance(getattr(network, "graph", None), Graph):
            raise NetworkError(f"network is {kind_of(network)}; pass a network, such as SimulatedNetwork(graph)")
        for name, value, allowed in (("robust", robust, get_args(Robust)), ("on_bad", on_bad, get_args(OnBad))):
            if value not in allowed:
                raise TrainingError(f"{name} = {value!r}; choose one of {', '.join(allowed)}")
        self.network, self.robust, self.on_bad = network, robust, on_bad
        self.graph, self.nodes, self.traffic, self.links = network.graph, network.nodes, network.traffic, network.links
        self.wire_dtype = network.wire_dtype
        self._near = Arcs.into(self.graph, self.nodes)
        counts = {name: torch.zeros(len(self.nodes), 1, dtype=torch.int64) for name in ("heard", "clipped", "stopped")}
        self.state = State(counts)
        self._routes = lru_cache(64)(partial(route_of, graph=self.graph, nodes=self.nodes))
        self._radii: tuple[torch.Tensor, FloatArray] | None = None  # of the mixing under way, and its rows

    @property
    def step(self) -> int | None:
        """The step under way."""
        return self.network.step

    def begin(self, step: int) -> None:
        """Begin a step: radii are those of its mixings."""
        self.network.begin(step)
        self._radii = None

    def uncounted(self) -> GuardedNetwork:
        """Return this network with a counter of its own."""
        view = copy(self)
        view.network = self.network.uncounted()
        view.traffic = view.network.traffic
        return view

    def measuring(self) -> Measuring:
        """Return the view for measurements."""
        return self.network.measuring()

    # --- the network ---
    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Mix what arrives as far as it can be trusted."""
        if packing is not None or W.kind != "doubly":
            return self.network.mix(rows, W, out=out, packing=packing)
        check_dtype(rows)
        route, wire = self._routes(W), Wire.of(rows, self.wire_dtype)
        arcs, seen = route.arcs, rows if wire is None else wire.rounded(rows)
        arrivals = self._exchanged(rows, route)
        D, lost = arrivals.rows.sub_(seen[arcs.index(rows)]), arrivals.unused
        distance, own = lengths(D), lengths(seen)[arcs.owner]
        bad = is_bad(distance, own, rows.dtype) & ~lost
        self._note(arcs, bad, distance, own)
        used = ~(bad | lost)
        D.masked_fill_(column(~used, D).bool(), 0.0)
        weights = np.where(used, route.weights, 0.0)
        self._count("heard", arcs, used)
        if self.robust == "clip":
            radius = self._radius(rows, seen, route, np.where(used, distance, np.inf))[arcs.owner]
            clipped = used & (distance > radius)
            weights[clipped] *= (radius[clipped] / distance[clipped]) ** _FALL
            self._count("clipped", arcs, clipped)
        moves = torch.zeros_like(rows).index_add_(0, arcs.index(rows), D.mul_(column(weights, D)))
        return (rows.clone() if out is None else out.copy_(rows)).add_(moves)

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Mixed:
        """Return a gossip step whose rows have travelled: they are compared before anything else is done."""
        return Mixed(rows, self.mix(rows, W))

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = ROWS) -> Arrivals:
        """Send one row along every arc; with `robust`, sketches are bounded, and bad ones count as lost."""
        arrivals = self.network.exchange(messages, graph, cargo=cargo)
        rows = arrivals.rows
        if not rows.is_floating_point():
            return arrivals
        arcs, length = Arcs.into(graph, self.nodes), lengths(rows)
        bad = ~np.isfinite(length) & ~arrivals.unused
        self._note(arcs, bad, length, length, can_skip=cargo.optional)
        if not cargo.optional:
            return arrivals
        lost = bad if arrivals.lost is None else bad | arrivals.lost
        if self.robust == "clip" and not graph.directed:
            D = rows - messages  # of an undirected graph, arcs out of a node and into it are in the same order
            distance = np.where(lost, np.nan, lengths(D))
            rows = messages + D * column(bounded(distance, arcs.owner, len(self.nodes)), D)
        return arrivals._replace(rows=rows.masked_fill(column(lost, rows).bool(), 0), lost=lost)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of all nodes; bad ones are replaced by the mean of the others, long ones are shortened.

        Every process gathers the same rows and decides by them alone, so all of them leave out the same nodes.
        """
        gathered = self.network.gather(rows)
        if not gathered.is_floating_point():
            return gathered
        unheard = ~np.isfinite(lengths(gathered))
        self._note_gathered(np.flatnonzero(unheard))
        if unheard.any():
            heard = gathered[torch.from_numpy(~unheard).to(gathered.device)]
            gathered = torch.where(column(unheard, gathered).bool(), heard.sum(dim=0) / max(1, len(heard)), gathered)
        if self.robust == "none":
            return gathered
        return gathered * column(bounded(lengths(gathered), np.zeros(len(unheard), dtype=np.int64), 1), gathered)

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean of the rows of all nodes, as it is."""
        return self.network.average(rows)

    def figures(self) -> dict[str, float]:
        """Return what a record holds: the share of rows that were clipped, and how many were stopped; collective."""
        counts = torch.cat([self.state.rows[name] for name in ("heard", "clipped", "stopped")], dim=1)
        heard, clipped, stopped = self.measuring().gather(counts).sum(dim=0).tolist()
        return {"rows_clipped": clipped / max(1, heard), "rows_stopped": stopped}

    # --- rows that arrive ---
    def _exchanged(self, rows: torch.Tensor, route: Route) -> Arrivals:
        """Send the rows along the arcs of a gossip step, counted on every process as those of all nodes."""
        messages = rows[torch.from_numpy(route.leaving).to(rows.device)]
        if route.whole:
            return self.network.exchange(messages, route.graph)
        arrivals = self.network.uncounted().exchange(messages, route.graph)
        first = torch.arange(len(self.nodes), device=rows.device)[:, None] == 0
        sent = int(self.measuring().gather(first * len(messages)).sum())
        self.traffic.add(ROWS, sent * message_bytes(rows, Wire.of(rows, self.wire_dtype)))
        return arrivals

    def _note(self, arcs: Arcs, bad: BoolArray, length: FloatArray, own: FloatArray, can_skip: bool = True) -> None:
        """Stop, or count rows that must not be mixed."""
        if not bad.any():
            return
        e = int(bad.argmax())
        if self.on_bad == "stop" or not can_skip:
            sender, receiver = int(arcs.senders[e]), self.nodes[int(arcs.owner[e])]
            raise rejected(sender, receiver, float(length[e]), float(own[e]), self.step, self._cause, can_skip)
        self._count("stopped", arcs, bad)

    def _note_gathered(self, senders: IntArray) -> None:
        """Stop, or count bad rows that every node has gathered."""
        if not len(senders):
            return
        if self.on_bad == "stop":
            raise rejected(int(senders[0]), self.nodes[0], math.nan, math.nan, self.step, self._cause)
        if self.nodes.start == 0:  # each is counted once, not by every process
            self.state.rows["stopped"][0] += len(senders)

    @property
    def _cause(self) -> Cause:
        """What a bad row comes from: where nodes are hostile, from one of them."""
        return "node" if isinstance(self.network, FaultyNetwork) and self.network.hostile.kinds else "either"

    def _count(self, name: str, arcs: Arcs, which: BoolArray) -> None:
        self.state.rows[name] += torch.from_numpy(np.bincount(arcs.owner[which], minlength=len(self.nodes)))[:, None]

    # --- clip ---
    def _radius(self, rows: torch.Tensor, seen: torch.Tensor, route: Route, distance: FloatArray) -> FloatArray:
        """τ of each owned node (m,), the same for all rounds of a mixing: rows that were averaged are close anyway."""
        if self._radii is None or self._radii[0] is not rows:
            owner = route.arcs.owner
            if not route.complete:
                S = seen if seen.shape[1] <= 2 * _SKETCH.dim else _SKETCH.fresh(self.step or 0)(seen)
                owner, sent = self._near.owner, S[self._near.index(rows)]
                told = self.network.exchange(sent, self.graph, cargo=SKETCHES)
                distance = np.where(told.unused, np.inf, lengths(told.rows - sent))
            self._radii = rows, _RADIUS * lower_median(distance, owner, len(self.nodes))
        return self._radii[1]


@dataclass(frozen=True)
class Mixed:
    """A gossip step that is done: the rows before, and after."""

    rows: torch.Tensor
    mixed: torch.Tensor

    def wait(self) -> torch.Tensor:
        """Return the mixed rows."""
        return self.mixed

    def move(self, rows: torch.Tensor) -> None:
        """Add what mixing changes to these rows, in place."""
        rows.add_(self.mixed.sub_(self.rows))


def guarded(network: Network, robust: Robust, on_bad: OnBad) -> Network:
    """Return the network with a guard, if it needs one: by itself it stops at bad values."""
    hostile = isinstance(network, FaultyNetwork) and bool(network.hostile.kinds)
    return GuardedNetwork(network, robust, on_bad) if hostile or (robust, on_bad) != ("none", "stop") else network


def unguarded(network: Network) -> Network:
    """Return the network without its guard, if it has one."""
    return network.network if isinstance(network, GuardedNetwork) else network
