"""Nodes of a simulation that send something else than their rows: `faults: {corrupt: …}`.

Their own rows are trained and mixed as usual. Their messages depend on the seed, the step and the rows only.

Legend: n nodes; A messages as they arrive, sorted by (receiver, sender).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import torch

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.seeding import generator, hashed, stream

Corruption: TypeAlias = Literal["noise", "flip", "dissensus", "nan", "echo", "sketch"]
_AWAY = 2.0  # dissensus: 1 undoes what honest neighbors contribute to a gossip step, more drives them apart
_LONGER = 1e6  # sketch: by how much the sketches of such a node are too long


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

    def honest_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows (n, d) without those of hostile nodes."""
        return rows[torch.from_numpy(self.honest)] if self.kinds else rows

    def turn_gradients(self, G: torch.Tensor) -> None:
        """Turn the gradients (n, d) of nodes whose updates are sign-flipped, in place: they train uphill."""
        G[self.kinds.get("flip", [])] *= -1

    def replaced(self, rows: torch.Tensor, senders: IntArray, *, sketches: bool = False) -> torch.Tensor:
        """Return rows, or sketches, with those from hostile senders replaced, in a new tensor if there are any."""
        if not self.kinds:
            return rows
        rows, self._calls = rows.clone(), self._calls + 1
        draw = generator(self.seed, "noise", self._step, self._calls)
        for kind in (kind for kind in ("noise", "nan") if kind in self.kinds):
            theirs = torch.from_numpy(np.isin(senders, self.kinds[kind]))
            draws = torch.randn(int(theirs.sum()), rows.shape[1], generator=draw)
            rows[theirs] = draws.to(rows) if kind == "noise" else float("nan")
        if sketches:
            rows[torch.from_numpy(np.isin(senders, self.kinds.get("sketch", [])))] *= _LONGER
        return rows

    def corrupted(self, arrived: torch.Tensor, graph: Graph, *, sketches: bool) -> torch.Tensor:
        """Return the messages (A, w) that arrive along the arcs of a graph, those of hostile senders corrupted."""
        if not self.kinds:
            return arrived
        senders, receivers = (ends[graph.arcs.by_receiver] for ends in graph.arcs[:2])
        changed = self.replaced(arrived, senders, sketches=sketches)
        one = dict(zip(senders.tolist(), range(len(senders)), strict=True))  # a message of each node that sends one
        echo, dissensus = (self.kinds.get(kind, []) for kind in ("echo", "dissensus"))
        for e in np.flatnonzero(np.isin(senders, echo + dissensus) & np.isin(receivers, senders)).tolist():
            changed[e] = x = arrived[one[int(receivers[e])]]
            if senders[e] in dissensus:
                near = self.graph.neighbors(int(receivers[e]))
                others = [one[i] for i in near if i in self.honest and i in one]
                share = _AWAY / max(1, sum(i not in self.honest for i in near))
                changed[e] -= share * (arrived[others] - x).sum(dim=0)
        return changed
