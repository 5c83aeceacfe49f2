"""Writes `weights.jsonl`: a line for each recorded mixing whose weights differ from those of the line before.

    {"step": 12, "params": [ROUND, …], "updates": [ROUND, …], "tree": [[i, j], …]}

A ROUND is {"edges": […]} or {"arcs": […]}, one weight per edge or arc of the run's graph (edges if W = Wᵀ), or, on
another graph, {"list": [[i, j, weight], …]}. Weights are in thousandths; a loop has the rest of its row.
`mixwise.report.weights` reads the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.protocols import Plan
from mixwise.training.training import Step

MAX_LINES = 200  # a slider has no room for more
_MAX_NUMBERS = 400_000  # in the file of one run
_MAX_ARCS = 20_000  # a larger graph cannot be drawn


def stride(mixings: int, arcs: int) -> int | None:
    """Record every so many mixings; always odd, so that both turns of an alternating policy are seen."""
    if arcs > _MAX_ARCS:
        return None
    lines = max(1, min(MAX_LINES, _MAX_NUMBERS // max(1, arcs)))
    return -(-mixings // lines) | 1


def encoded(plan: Plan, graph: Graph) -> dict[str, Any]:
    """The weights of a plan, ready for JSON."""
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


class WeightsLog:
    """Appends the weights of a run to its file while it trains.

    Args:
        path: the file; None to write nothing.
        graph: the graph of the run.
        mixings: the number of mixings in the run.
        local_steps: steps from one mixing to the next.
    """

    def __init__(self, path: Path | None, graph: Graph, mixings: int, local_steps: int = 1) -> None:
        self.graph, self.local_steps = graph, local_steps
        self.stride = stride(mixings, len(graph.arcs.senders))
        self._file = None if path is None else path.open("a", encoding="utf-8")
        lines = [] if path is None else path.read_text("utf-8").splitlines()
        self._last = {name: value for name, value in json.loads(lines[-1]).items() if name != "step"} if lines else None

    def see(self, step: Step) -> None:
        """Record the weights of a step, if it is one of those to record and they are new."""
        if self._file is None or self.stride is None or step.plan is None:
            return
        if (step.t // self.local_steps) % self.stride or not all(W.whole for W in step.plan.matrices):
            return
        line = encoded(step.plan, self.graph)
        if line != self._last:
            self._last = line
            self._file.write(json.dumps({"step": step.t, **line}, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Make everything written so far visible to readers of the file."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
