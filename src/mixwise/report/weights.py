"""The weights of a run over time: a line per mixing that was looked at and whose weights are new.

    {"step": 12, "params": [ROUND, …], "updates": [ROUND, …], "tree": [[i, j], …]}

A ROUND is {"edges": […]} or {"arcs": […]}, one weight per edge or arc of the run's graph (edges if W = Wᵀ), or, on
another graph, {"list": [[i, j, weight], …]}. Weights are in thousandths; loops have what their row lacks of 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.protocols import Plan
from mixwise.training.training import Step

MOST_SNAPSHOTS = 200  # as many as a slider can tell apart
_MOST_NUMBERS = 400_000  # of one run, so that large graphs do not fill the disk
_MOST_ARCS = 20_000  # nobody can look at more


def stride(mixings: int, arcs: int) -> int | None:
    """Every how many mixings to look; odd, since policies that take turns would show only one of their faces."""
    if arcs > _MOST_ARCS:
        return None
    looks = max(1, min(MOST_SNAPSHOTS, _MOST_NUMBERS // max(1, arcs)))
    return -(-mixings // looks) | 1


def encoded(plan: Plan, graph: Graph) -> dict[str, Any]:
    """A plan as JSON holds it."""
    line: dict[str, Any] = {"params": [_round(W, graph) for W in plan.params]}
    if plan.updates is not None:
        line["updates"] = [_round(W, graph) for W in plan.updates]
    if plan.tree is not None:
        line["tree"] = [list(edge) for edge in plan.tree.edges]
    return line


def _round(W: MixingMatrix, graph: Graph) -> dict[str, Any]:
    pattern = W.graph.pattern
    off = pattern.rows != pattern.cols
    i, j, thousandths = pattern.rows[off], pattern.cols[off], np.rint(1000 * W.weights[off]).astype(int)
    if W.graph != graph:
        used = thousandths > 0
        return {"list": np.stack([i, j, thousandths], axis=1)[used].tolist()}
    if not graph.directed and W.is_symmetric:
        return {"edges": thousandths[i < j].tolist()}  # sorted by (i, j), as the edges are
    return {"arcs": thousandths.tolist()}


def decoded(round_: dict[str, Any], graph: Graph) -> list[tuple[int, int, int]]:
    """The arcs of a round that carry something, with their weights in thousandths: (i, j, w)."""
    if "list" in round_:
        return [(int(i), int(j), int(w)) for i, j, w in round_["list"]]
    if "edges" in round_:
        both = zip(graph.edges, round_["edges"], strict=True)
        return [arc for (i, j), w in both if w for arc in ((i, j, int(w)), (j, i, int(w)))]
    arcs = zip(graph.arcs.senders.tolist(), graph.arcs.receivers.tolist(), round_["arcs"], strict=True)
    return [(i, j, int(w)) for i, j, w in arcs if w]


class WeightsLog:
    """Writes the weights of a run as it goes; what is in the file already stays.

    Args:
        path: the file; None to write nothing.
        graph: of the run.
        mixings: how many the run has.
        local_steps: steps from one mixing to the next.
    """

    def __init__(self, path: Path | None, graph: Graph, mixings: int, local_steps: int = 1) -> None:
        self.graph, self.local_steps = graph, local_steps
        self.stride = stride(mixings, len(graph.arcs.senders))
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._last = None if path is None else _last_weights(path)

    def see(self, step: Step) -> None:
        """A step has been taken."""
        if self._file is None or self.stride is None or step.plan is None:
            return
        if (step.t // self.local_steps) % self.stride or not all(W.whole for W in step.plan.matrices):
            return
        line = encoded(step.plan, self.graph)
        if line != self._last:
            self._last = line
            self._file.write(json.dumps({"step": step.t, **line}, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Let others see what was written."""
        if self._file is not None:
            self._file.flush()

    def __enter__(self) -> WeightsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _last_weights(path: Path) -> dict[str, Any] | None:
    """What the last line says, for a run that goes on."""
    lines = path.read_text("utf-8").splitlines()
    return {name: value for name, value in json.loads(lines[-1]).items() if name != "step"} if lines else None
