"""The files that a run writes while it trains: its scene, its records, its weights over time, and those of TensorBoard.

`weights.jsonl` has a line for each recorded mixing whose weights differ from those of the line before:

    {"step": 12, "params": [ROUND, …], "updates": [ROUND, …], "tree": [[i, j], …]}

A ROUND is {"edges": […]} or {"arcs": […]}, one weight per edge or arc of the run's graph (edges if W = Wᵀ), or, on
another graph, {"pairs": [i, j, weight, i, j, weight, …]} if W = Wᵀ and else {"list": [[i, j, weight], …]}. Weights are
in thousandths; a loop has the rest of its row. `mixwise.report.weights` reads the file.

`nodes.jsonl` has a line for some of the records, however long the run is:

    {"step": 12, "xy": [x₀, y₀, x₁, y₁, …], "accuracy": [a₀, a₁, …]}

(x_i, y_i) is a count sketch of x_i − x̄, two numbers per node; accuracies, in thousandths, are those of an evaluation.

`tensorboard=true` in a recipe writes to DIR/<variant>/seed-<s>/tensorboard/; `tensorboard --logdir DIR` shows all runs
of a folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import ConfigError
from mixwise.experiments.build import Prepared
from mixwise.experiments.experiment_folder import METRICS, NODES, SCENE, TIMINGS, WEIGHTS
from mixwise.graphs import Graph
from mixwise.graphs.drawing import graph_figure, is_drawable
from mixwise.mixing import MixingMatrix
from mixwise.parts import normalized, words
from mixwise.protocols import Plan
from mixwise.report.records import thinned
from mixwise.sketch import CountSketch
from mixwise.storage import sync, write_text
from mixwise.tasks import ModuleTask
from mixwise.training import Record, Step, Training

MAX_LINES = 200  # of weights.jsonl: a slider has no room for more
_MAX_NUMBERS = 200_000  # in weights.jsonl, however long the run is
_MAX_NODE_LINES, _MAX_NODE_NUMBERS = 100, 100_000  # of nodes.jsonl
_MAX_ARCS = 20_000  # a larger graph cannot be drawn
_MAX_HEAT_MAPS = 30  # of one run, in TensorBoard
_MAX_NODES = 512  # the cells of a larger heat map are too small to see
_SIDE = 256  # pixels; the smallest width of a heat map

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)


def open_logs(place: Path, prepared: Prepared, training: Training) -> list[Log]:
    """Write the scene of a run if it is new, and open its other files at the training's current step."""
    whole = training.network.graph.n == prepared.nodes  # pictures are of all nodes
    if whole and not (place / SCENE).exists():
        write_text(place / SCENE, json.dumps(_scene(prepared, training)))
    logs: list[Log] = [_RecordLog(place / METRICS, Record.to_json), _RecordLog(place / TIMINGS, Record.timings_to_json)]
    if whole:
        logs.append(_WeightsLog(place / WEIGHTS, training, prepared.steps))
        logs.append(_NodeLog(place / NODES))
    if prepared.config.tensorboard:
        logs.append(_TensorBoardLog(place / "tensorboard", training, prepared.steps))
    return logs


def _scene(prepared: Prepared, training: Training) -> dict[str, Any]:
    """The graph, the labels that each node holds, and the method in words, as JSON values."""
    config, graph, task = prepared.config, training.network.graph, training.task
    kind, options = normalized("policy", config.policy)
    found: dict[str, Any] = {
        "n": graph.n,
        "directed": graph.directed,
        "edges": graph.edge_array.tolist(),
        "labels": graph.labels,
        "positions": None if graph.positions is None else graph.positions.round(4).tolist(),
        "graph": config.graph,
        "placement": config.placement,
        "dim": task.layout.dim,
        "row_bytes": task.layout.dim * training.X.element_size(),
        "steps": prepared.steps,
        "policy": words(config.part("policy")),
        "policy_kind": options["weights"] if isinstance(options.get("weights"), str) else kind,  # a scheme's own name
        "algorithm": words(config.part("algorithm")),
        "algorithm_kind": normalized("algorithm", config.algorithm)[0],
    }
    if isinstance(task, ModuleTask):
        found |= {
            "data": task.data.name,
            "counts": task.partition.label_counts(task.data.y, task.data.classes).tolist(),
            "classes": list(task.data.class_names) or [str(label) for label in range(task.data.classes)],
            "steps_per_epoch": len(task.data) / (task.nodes * task.batch),
        }
    return found


class Log:
    """A file that grows while a run trains.

    Attributes:
        file: the open file; a `SummaryWriter` for TensorBoard.
    """

    def __init__(self, file: Any) -> None:
        self.file = file

    def see(self, step: Step) -> None:
        """Log what belongs to every step."""

    def add(self, record: Record) -> None:
        """Log a record."""

    def see_nodes(self, step: int, line: dict[str, Any]) -> None:
        """Log the models of all nodes after a step."""

    def flush(self) -> None:
        """Make all lines safe from a power cut."""
        sync(self.file)


class _RecordLog(Log):
    """One line per record."""

    def __init__(self, path: Path, to_line: Callable[[Record], str]) -> None:
        super().__init__(path.open("a", encoding="utf-8"))
        self._to_line = to_line

    def add(self, record: Record) -> None:
        """Append a line."""
        self.file.write(self._to_line(record) + "\n")


# --- weights.jsonl ---
class _WeightsLog(Log):
    """The weights over time."""

    def __init__(self, path: Path, training: Training, steps: int) -> None:
        super().__init__(path.open("a", encoding="utf-8"))
        self._graph, self._local_steps = training.network.graph, training.local_steps
        self._mixings = steps // training.local_steps
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        self._stride = stride(self._mixings, self._size(lines[0])) if lines else 1
        self._last = {name: value for name, value in lines[-1].items() if name != "step"} if lines else None

    def _size(self, line: dict[str, Any]) -> int:
        """Roughly how many numbers a line holds: that of a plan of many rounds, more than one per arc."""
        return max(len(self._graph.arcs.senders), json.dumps(line).count(","))

    def see(self, step: Step) -> None:
        """Log the weights of a step, if it is one of those to record and they are new."""
        if step.plan is None or (step.t // self._local_steps) % self._stride:
            return
        if len(self._graph.arcs.senders) > _MAX_ARCS or not all(W.whole for W in step.plan.matrices):
            return
        if (line := encoded(step.plan, self._graph)) != self._last:
            if self._last is None:
                self._stride = stride(self._mixings, self._size(line))
            self._last = line
            self.file.write(json.dumps({"step": step.t, **line}, separators=(",", ":")) + "\n")


def stride(mixings: int, numbers: int) -> int:
    """Record every so many mixings of so many numbers; odd, so that both turns of an alternating policy are seen."""
    lines = max(1, min(MAX_LINES, _MAX_NUMBERS // max(1, numbers)))
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
        if W.is_symmetric:
            used &= i < j
            return {"pairs": np.stack([i, j, thousandths], axis=1)[used].ravel().tolist()}
        return {"list": np.stack([i, j, thousandths], axis=1)[used].tolist()}
    if not graph.directed and W.is_symmetric:
        return {"edges": thousandths[i < j].tolist()}  # sorted by (i, j), as the edges are
    return {"arcs": thousandths.tolist()}


# --- nodes.jsonl ---
class _NodeLog(Log):
    """The models of all nodes over time, two numbers each, and their accuracies."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("a", encoding="utf-8"))

    def see_nodes(self, step: int, line: dict[str, Any]) -> None:
        """Append a line."""
        self.file.write(json.dumps({"step": step, **line}, separators=(",", ":")) + "\n")


def node_steps(prepared: Prepared) -> set[int]:
    """The steps whose records get a line in nodes.jsonl."""
    lines, steps = max(4, min(_MAX_NODE_LINES, _MAX_NODE_NUMBERS // (3 * prepared.nodes))), prepared.steps
    evaluated = [*range(prepared.evaluate_every - 1, steps - 1, prepared.evaluate_every), steps - 1]
    return {*thinned(evaluated, lines // 2), *thinned(prepared.recorded(steps), lines // 2)}


def node_line(training: Training, evaluated: bool) -> dict[str, Any]:
    """The models as two numbers each, and their accuracies if they were just evaluated; a collective call."""
    network, task = training.network, training.task
    with network.uncounted():
        S = network.gather(torch.from_numpy(CountSketch(2).sums(training.models))).numpy()
    line: dict[str, Any] = {"xy": [float(f"{value:.3g}") for value in (S - S.mean(axis=0)).ravel()]}
    if evaluated and isinstance(task, ModuleTask) and task.node_accuracies is not None:
        line["accuracy"] = (1000 * task.node_accuracies).round().int().tolist()
    return line


# --- TensorBoard ---
def check_tensorboard() -> None:
    """Raise an error with the install command if TensorBoard is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tensorboard=true needs the package tensorboard, which is not installed; pip install 'mixwise[tensorboard]'"
        ) from None


class _TensorBoardLog(Log):
    """The numbers of every record, a picture of the graph, and from time to time one of W."""

    def __init__(self, folder: Path, training: Training, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        # Anything that an earlier process wrote about later steps is hidden.
        super().__init__(SummaryWriter(str(folder), purge_step=training.t or None))
        self._graph, self._drawn = training.network.graph, False
        self._plan: Plan | None = None  # of the last mixing
        self._every = -(-steps // _MAX_HEAT_MAPS)
        self._next = training.t

    def flush(self) -> None:
        """Make all numbers visible to readers."""
        self.file.flush()

    def see(self, step: Step) -> None:
        """Remember the weights of a step for the next picture."""
        self._plan = step.plan or self._plan

    def add(self, record: Record) -> None:
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
        plan = self._plan
        if plan is None or self._graph.n > _MAX_NODES or not plan.params or not all(W.whole for W in plan.matrices):
            return
        self.file.add_image("W", heat_map_pixels(plan.params_product), step, dataformats="HWC")
        if plan.updates is not None:
            self.file.add_image("W of the updates", heat_map_pixels(plan.updates_product), step, dataformats="HWC")


def heat_map_pixels(W: npt.NDArray[np.float64]) -> Pixels:
    """W as an image: row i is what node i sends, column j what node j receives; white for 0, dark blue for 1."""
    from matplotlib import colormaps

    cells = (colormaps["Blues"](np.clip(W, 0, 1))[..., :3] * 255).round().astype(np.uint8)
    each = max(1, -(-_SIDE // len(W)))
    pixels: Pixels = cells.repeat(each, axis=0).repeat(each, axis=1)
    return pixels
