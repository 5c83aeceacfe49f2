"""The files that a run writes while it trains: its scene, its records, its weights and its models over time.

Every line of the `.jsonl` files ends with a checksum of itself, `"crc32"` (`mixwise.storage.sealed`).

`weights.jsonl` has a line for each recorded mixing whose weights differ from those of the line before:

    {"step": 12, "params": [ROUND, …], "updates": [ROUND, …], "tree": [[i, j], …]}

A ROUND is {"arcs": [i, j, weight, i, j, weight, …]}; if W = Wᵀ, it is {"pairs": […]} with i < j only. Weights are in
thousandths; a loop has the rest of its row. `mixwise.report.weights` reads the file.

`nodes.jsonl` has a line for some of the records, however long the run is:

    {"step": 12, "xy": [x₀, y₀, x₁, y₁, …], "accuracy": [a₀, a₁, …]}

(x_i, y_i) is a count sketch of x_i − x̄, two numbers per node; accuracies, in thousandths, are those of an evaluation.

`tensorboard/` is written with `tensorboard=true`; `tensorboard --logdir DIR` shows all runs of a folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.drawing import MAX_MATRIX, graph_figure, is_drawable, matrix_figure
from mixwise.graphs.trees import breadth_first
from mixwise.mixing import MixingMatrix
from mixwise.parts import is_reference, kind, words
from mixwise.policies.controls import controls, uncontrolled
from mixwise.protocols import Plan
from mixwise.sketch import CountSketch
from mixwise.storage import sealed, sync, write_text
from mixwise.tasks import ModuleTask
from mixwise.training.loop import Record
from mixwise.training.record_files import METRICS, NODES, SCENE, TIMINGS, WEIGHTS, records_before
from mixwise.training.training import Training

MAX_LINES = 200  # of weights.jsonl: a slider has no room for more
_MAX_NUMBERS = 200_000  # in weights.jsonl, however long the run is
_MAX_ARCS = 20_000  # a larger graph cannot be drawn
_MAX_SAMPLED = 60  # nodes that are shown of a graph that is too large
_MAX_HEAT_MAPS = 30  # of one run, for TensorBoard


def open_logs(
    place: Path,
    scene: dict[str, Any] | None,
    graph: Graph,
    *,
    t: int = 0,
    steps: int = 0,
    local_steps: int = 1,
    tensorboard: bool = False,
) -> list[Log]:
    """Write the scene of a run if it is new, and open its other files at step t.

    Args:
        place: the folder of the run.
        scene: its graph and method; None if nodes were lost, since pictures are of all nodes.
        graph: of the nodes that are left.
        steps: of the whole run, by which weights and pictures are thinned; 0 if unknown: they are not thinned.
        tensorboard: whether to write files for TensorBoard.
    """
    if scene is not None and not (place / SCENE).exists():
        write_text(place / SCENE, json.dumps(scene))
    logs: list[Log] = [
        _RecordLog(place / METRICS, lambda record, nodes: record.to_json()),
        _RecordLog(place / TIMINGS, lambda record, nodes: record.timings_to_json()),
    ]
    if scene is not None:
        logs += [_WeightsLog(place / WEIGHTS, graph, steps, local_steps), _RecordLog(place / NODES, _nodes_to_json)]
    if tensorboard:
        logs.append(TensorBoardLog(place / "tensorboard", graph, steps, t))
    return logs


def graph_scene(whole: Graph, dim: int, itemsize: int) -> dict[str, Any]:
    """The graph and the size of a row, as JSON values.

    Of a graph that is too large to show, the neighborhood of node 0, and how many nodes of all have each degree.
    """
    part = neighborhood(whole)
    graph = whole if part is None else whole.subgraph(part)
    found = {
        "n": graph.n,
        "directed": graph.directed,
        "edges": graph.edge_array.tolist(),
        "labels": graph.labels or (None if part is None else [str(node) for node in part]),
        "positions": None if graph.positions is None else graph.positions.round(4).tolist(),
        "dim": dim,
        "row_bytes": dim * itemsize,
    }
    if part is not None:
        found |= {"of": whole.n, "degrees": np.bincount(whole.degrees).tolist()}
    return found


def method_words(graph: str, placement: str | list[int], policy: Any, algorithm: Any) -> dict[str, Any]:
    """The graph, the policy and the algorithm of a run as its report names them."""
    seen = list(controls(policy))
    return {
        "graph": graph,
        "placement": placement,
        "policy": words(policy),
        "looks": None in seen,
        "control": next(filter(None, seen), None),
        "control_of": words(uncontrolled(policy)) if any(seen) else None,
        "policy_kind": kind(policy),
        "algorithm": words(algorithm),
        "algorithm_kind": kind(algorithm),
        "reference": is_reference(policy) or is_reference(algorithm),
        "own_edges": policy.provides.own_edges,
    }


def neighborhood(graph: Graph) -> list[int] | None:
    """The nodes nearest to node 0, which stand for a graph that is too large to show; None for a smaller one."""
    if len(graph.arcs.senders) <= _MAX_ARCS:
        return None
    return sorted(breadth_first(graph, 0)[0][:_MAX_SAMPLED].tolist())


class Log:
    """A file that grows while a run trains.

    Attributes:
        file: the open file; a `SummaryWriter` for TensorBoard.
    """

    def __init__(self, file: Any) -> None:
        self.file = file

    def see(self, t: int, plan: Plan | None) -> None:
        """Log what belongs to every step: the weights of its mixing, if it had one."""

    def add(self, record: Record, nodes: dict[str, Any] | None = None) -> None:
        """Log a record and, if given, the models of all nodes at that step (`node_values`)."""

    def flush(self) -> None:
        """Make all lines safe from a power cut."""
        sync(self.file)


class _RecordLog(Log):
    """One line per record, or per record that has something to write."""

    def __init__(self, path: Path, to_line: Callable[[Record, dict[str, Any] | None], str]) -> None:
        super().__init__(path.open("a", encoding="utf-8"))
        self._to_line = to_line

    def add(self, record: Record, nodes: dict[str, Any] | None = None) -> None:
        """Append a line, unless it is empty."""
        if line := self._to_line(record, nodes):
            self.file.write(sealed(line) + "\n")


# --- weights.jsonl ---
class _WeightsLog(Log):
    """The weights over time."""

    def __init__(self, path: Path, graph: Graph, steps: int, local_steps: int) -> None:
        super().__init__(path.open("a", encoding="utf-8"))
        self._graph, self._local_steps = graph, local_steps
        self._mixings = steps // local_steps
        lines = records_before(path, sys.maxsize).records
        self._stride = stride(self._mixings, lines[0]) if lines else 1
        self._last = {name: value for name, value in lines[-1].items() if name != "step"} if lines else None

    def see(self, t: int, plan: Plan | None) -> None:
        """Log the weights of a step, if it is one of those to record and they are new."""
        if plan is None or (t // self._local_steps) % self._stride:
            return
        if len(self._graph.arcs.senders) > _MAX_ARCS or not all(W.whole for W in plan.matrices):
            return
        if (line := encoded(plan)) != self._last:
            if self._last is None:
                self._stride = stride(self._mixings, line)
            self._last = line
            self.file.write(sealed(json.dumps({"step": t, **line}, separators=(",", ":"))) + "\n")


def stride(mixings: int, line: dict[str, Any]) -> int:
    """Record every so many mixings with lines like this; odd, so that both turns of an alternating policy are seen."""
    lines = max(1, min(MAX_LINES, _MAX_NUMBERS // (1 + json.dumps(line).count(","))))
    return -(-mixings // lines) | 1


def encoded(plan: Plan) -> dict[str, Any]:
    """The weights of a plan, ready for JSON."""
    line: dict[str, Any] = {"params": [_round(W) for W in plan.params]}
    if plan.updates is not None:
        line["updates"] = [_round(W) for W in plan.updates]
    if plan.tree is not None:
        line["tree"] = [list(edge) for edge in plan.tree.edges]
    return line


def _round(W: MixingMatrix) -> dict[str, list[int]]:
    i, j, thousandths = W.graph.pattern.rows, W.graph.pattern.cols, np.rint(1000 * W.weights).astype(int)
    name, shown = ("pairs", i < j) if W.is_symmetric else ("arcs", i != j)
    return {name: np.stack([i, j, thousandths], axis=1)[shown & (thousandths > 0)].ravel().tolist()}


# --- nodes.jsonl ---
def _nodes_to_json(record: Record, nodes: dict[str, Any] | None) -> str:
    return "" if nodes is None else json.dumps({"step": record.step, **nodes}, separators=(",", ":"))


def node_values(training: Training, evaluated: bool) -> dict[str, Any]:
    """The models as two numbers each, and their accuracies if they were just evaluated; a collective call."""
    network, task = training.network, training.task
    S = network.measuring().gather(torch.from_numpy(CountSketch(2).sums(training.models))).numpy()
    values: dict[str, Any] = {"xy": [float(f"{value:.3g}") for value in (S - S.mean(axis=0)).ravel()]}
    if evaluated and isinstance(task, ModuleTask) and task.node_accuracies is not None:
        values["accuracy"] = (1000 * task.node_accuracies).round().int().tolist()
    return values


# --- tensorboard/ ---
def check_tensorboard() -> None:
    """Raise an error with the install command if TensorBoard is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tensorboard=true needs the package tensorboard, which is not installed; pip install 'mixwise[tensorboard]'"
        ) from None


class TensorBoardLog(Log):
    """The numbers of every record, a picture of the graph, and from time to time one of W."""

    def __init__(self, folder: Path, graph: Graph, steps: int, t: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        # Anything that an earlier process wrote about later steps is hidden.
        super().__init__(SummaryWriter(str(folder), purge_step=t or None))
        self._graph, self._drawn = graph, False
        self._plans: dict[bool, Plan] = {}  # the last mixing with optimized weights, and the last with others
        self._every = -(-steps // _MAX_HEAT_MAPS)
        self._next = t

    def flush(self) -> None:
        """Make all numbers visible to readers."""
        self.file.flush()

    def see(self, t: int, plan: Plan | None) -> None:
        """Remember the weights of a step for the next pictures."""
        if plan is not None:
            self._plans[plan.optimized] = plan

    def add(self, record: Record, nodes: dict[str, Any] | None = None) -> None:
        """Log the numbers of a record and, from time to time, the weights of the last mixing."""
        seconds = {f"seconds/{name}": value for name, value in record.seconds.items()}
        for name, value in {**record.values, **seconds}.items():
            if isinstance(value, int | float):
                self.file.add_scalar(name, value, record.step)
        if record.step >= self._next:
            self._add_pictures(record.step)
            self._next = record.step + self._every

    def _add_pictures(self, step: int) -> None:
        if not self._drawn and is_drawable(self._graph):
            self._drawn = True
            self.file.add_figure("graph", graph_figure(self._graph), step)
        plans = [self._plans[optimized] for optimized in (True, False) if optimized in self._plans]
        for tag, plan in zip(("W", "W unoptimized"), plans, strict=False):  # as in the names of their figures
            if self._graph.n > MAX_MATRIX or not plan.params or not all(W.whole for W in plan.matrices):
                continue
            self.file.add_figure(tag, matrix_figure(plan.params_product), step)
            if plan.updates is not None:
                self.file.add_figure(f"{tag} of the updates", matrix_figure(plan.updates_product), step)
