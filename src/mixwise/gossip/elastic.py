"""Gossip among the ranks that are present: without those that are lost, and with those that are started again.

A mixing that fails because of a loss is skipped but counted, and lagging ranks advance to the furthest mixing. A rank
that joins takes the model and the optimizer of a neighbor, which keeps training meanwhile, or keeps its own. Policy and
algorithm start over at every change of the members, on all ranks at once: their memory belongs to the previous graph.
They therefore conserve what their `init` sets up: the corrections of gradient tracking sum to 0, the masses of
push-sum to the number of ranks, the public copies of CHOCO are those that the neighbors hold, D² takes a step of D-SGD
first, and relayed sums and counts hold the present ranks only.
"""

from __future__ import annotations

import logging
import math
import threading
from itertools import pairwise
from typing import Any

import torch

from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip.collective import transport_of
from mixwise.gossip.start import Parts, begin_together, check_graph, connected
from mixwise.graphs import Graph
from mixwise.network.agreement import check_alike, difference, plain_name, report
from mixwise.network.board import bounded, until
from mixwise.network.membership import JOINING, MEMBER, Member, Membership
from mixwise.network.state_server import StateServer, encode_state, fetch_state
from mixwise.network.survivors import keep_counting, listed
from mixwise.protocols import Network, Policy

Place = tuple[int, int]  # mixings done, and collective answers (average, metrics) since the last of them

_log = logging.getLogger(__name__)
_BEFORE = (-1, 0)  # the place of a rank that has not begun
_CHANGES = -1  # in place of a mixing, while model and optimizer change
_AGAIN = 1.0  # seconds until a rank that joins asks again for the state of the others


def joined(graph: Graph) -> Graph:
    """Return the graph with an edge between its components, one after the other; every rank can reach every other.

    >>> joined(Graph(5, [(0, 1), (3, 4)])).edges
    ((0, 1), (1, 2), (2, 3), (3, 4))
    """
    bridges = [(one[-1], other[0]) for one, other in pairwise(graph.components)]
    back = [(b, a) for a, b in bridges] if graph.directed else []
    return Graph(graph.n, [*graph.edges, *bridges, *back], graph.directed) if bridges else graph


class Elastic:
    """Makes the network and the policy of the ranks that are present.

    Args:
        parts: of this rank.
        timeout: the longest wait for other ranks, in seconds.
    """

    def __init__(self, parts: Parts, timeout: float) -> None:
        self._parts, self._timeout = parts, timeout
        self._still, self._t = threading.Lock(), _CHANGES
        self._backend = "cpu:gloo,cuda:nccl" if parts.row.device.type == "cuda" else "gloo"
        self.membership = Membership.from_environment(timeout, self._serve)
        check_graph(parts.graph, self.membership.world)

    def _serve(self, host: str) -> int:
        self._server = StateServer(host, self._timeout, self._taken)
        return int(self._server.port)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that are present, as numbered at the start."""
        group = self.membership.group
        return () if group is None else group.ranks

    def start(self) -> tuple[Place, Network, Policy]:
        """Begin with all ranks, or join those that train already."""
        joins = self.membership.await_start()
        return self.meet(self._join() if joins else _BEFORE, None, joins)

    def meet(self, at: Place, before: Network | None, joins: bool = False) -> tuple[Place, Network, Policy]:
        """Form a group with the ranks that are present; return where they continue, and a new network and policy.

        A rank that joins waits for the others as long as they are alive; no rank waits for it.
        """
        while True:
            ranks = self.membership.connect(self._backend, patient=joins).ranks
            try:
                places = [(t, asked) for t, asked in self.membership.progress(at)]
                if at == _BEFORE and max(places) > _BEFORE:  # others have begun without this rank
                    self.membership.be(JOINING)
                    at, joins = self._join(), True
                elif at > _BEFORE and min(places) == _BEFORE:
                    continue  # that rank leaves, to join
                else:
                    return self._connected(ranks, max(places), before)
            except NetworkError:  # another change
                continue

    def _connected(self, ranks: tuple[int, ...], at: Place, before: Network | None) -> tuple[Place, Network, Policy]:
        left = self._parts.graph.subgraph(ranks)
        graph = joined(left)
        if graph is not left:
            _log.warning("the graph has fallen apart; an edge joins its parts until lost ranks are back")
        network = connected(graph, self._parts.options, self._timeout, lambda: self.membership.has_changed)
        if at == _BEFORE:
            check_alike(self._parts.lines, None, transport_of(network))
            begin_together(self._parts.row, network)
            network.traffic.reset()
            at = (0, 0)
        if before is not None:
            keep_counting(vars(before.traffic), before.graph.n, network)
        return at, network, self._parts.policy_on(graph)

    # --- state that travels ---
    def changes(self) -> None:
        """Take note that model and optimizer change from now on, so that no other thread may read them."""
        with self._still:
            self._t = _CHANGES

    def settled(self, t: int) -> None:
        """Take note that model and optimizer stay as they are after t mixings until they change again."""
        with self._still:
            self._t = t

    def offer(self) -> None:
        """Send model and optimizer to a rank that joins, if one waits for them."""
        if self._server.wanted:
            self._server.offer(self._state(self._t))

    def _taken(self) -> bytes | None:
        """Return the state for a rank that joins while this one is busy with something else, in a thread."""
        with self._still:
            return None if self._t == _CHANGES else self._state(self._t)

    def _state(self, t: int) -> bytes:
        tensors = {f"model/{name}": value for name, value in self._model().items()}
        saved = self._parts.optimizer.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for index, entries in saved["state"].items():
            held = {name: value for name, value in entries.items() if isinstance(value, torch.Tensor)}
            tensors |= {f"optimizer/{index}/{name}": value for name, value in held.items()}
            plain[str(index)] = {name: value for name, value in entries.items() if name not in held}
        values = {"t": t, "lines": self._parts.lines, "optimizer": plain, "groups": saved["param_groups"]}
        values["schedule"] = self._parts.schedule.origin
        return encode_state(tensors, values)

    @torch.no_grad()
    def _join(self) -> Place:
        """Take the state of a neighbor, or if there is none of another rank, and become a member."""
        member, tensors, values = self._awaited()
        rank = self.membership.me.rank
        told = difference([report(values["lines"], None), report(self._parts.lines, None)], [member.rank, rank])
        if told is not None:
            raise TrainingError(f"rank {rank} cannot join: {told}")
        if self._parts.options.rejoin == "neighbor":
            self._load(tensors, values)
        self._parts.schedule.origin = int(values["schedule"])
        self.membership.be(MEMBER)
        return int(values["t"]), 0

    def _awaited(self) -> tuple[Member, dict[str, torch.Tensor], dict[str, Any]]:
        """Return a member and its state; ask all of them, again and again, as long as any is alive."""
        rank, rounds, why = self.membership.me.rank, 0, ""
        neighbors = self._parts.graph.neighbors(rank)
        while until(lambda: self.membership.others, self._timeout):
            others = sorted(self.membership.others, key=lambda other: (other.rank not in neighbors, other.rank))
            for member in others:
                try:
                    return member, *self._fetched(member)
                except (NetworkError, TimeoutError) as error:  # it is lost or stopped as well
                    why = str(error)
            rounds += 1
            if rounds & (rounds - 1) == 0:  # 1, 2, 4, 8, …
                names = listed(sorted(other.rank for other in others))
                _log.warning("rank %d waits for the model of one of ranks %s, to join them: %s", rank, names, why)
            until(lambda: False, _AGAIN)
        raise NetworkError(f"rank {rank} cannot join: the ranks that were training have ended{why and f' ({why})'}")

    def _fetched(self, member: Member) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state of a member; do not wait for one that is stopped, as soon as it is left out."""

        def is_left_out() -> bool:
            return all(other.rank != member.rank for other in self.membership.others)

        # No limit for a long state: each of its waits is bounded.
        return bounded(lambda: fetch_state(member.host, member.state, self._timeout), math.inf, is_left_out)

    def _load(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        model = self._model()
        state: dict[int, dict[str, Any]] = {int(index): entries for index, entries in values["optimizer"].items()}
        for path, tensor in tensors.items():
            kind, _, name = path.partition("/")
            if kind == "model":
                model[name].copy_(tensor)
            else:
                index, _, entry = name.partition("/")
                state[int(index)][entry] = tensor
        # A schedule that Gossip steps goes on from where it is on this rank, and soon is where the others are.
        own = self._parts.schedule.kind is not None
        groups = self._parts.optimizer.state_dict()["param_groups"] if own else values["groups"]
        self._parts.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _model(self) -> dict[str, torch.Tensor]:
        state = self._parts.row.module.state_dict()
        return {plain_name(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
