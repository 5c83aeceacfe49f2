"""The files that a run writes while it trains: its scene, its records, its weights over time, and those of TensorBoard.

`weights.jsonl` has a line for each recorded mixing whose weights differ from those of the line before:

    {"step": 12, "params": [ROUND, …], "updates": [ROUND, …], "tree": [[i, j], …]}

A ROUND is {"edges": […]} or {"arcs": […]}, one weight per edge or arc of the run's graph (edges if W = Wᵀ), or, on
another graph, {"list": [[i, j, weight], …]}. Weights are in thousandths; a loop has the rest of its row.
`mixwise.report.weights` reads the file.

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

from mixwise.errors import ConfigError
from mixwise.experiments.build import Prepared
from mixwise.experiments.experiment_folder import METRICS, SCENE, TIMINGS, WEIGHTS
from mixwise.graphs import Graph
from mixwise.graphs.drawing import graph_figure, is_drawable
from mixwise.mixing import MixingMatrix
from mixwise.protocols import Plan
from mixwise.storage import sync, write_text
from mixwise.tasks import ModuleTask
from mixwise.training import Record, Step, Training

MAX_LINES = 200  # of weights.jsonl: a slider has no room for more
_MAX_NUMBERS = 400_000  # in weights.jsonl
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
    if prepared.tensorboard:
        logs.append(_TensorBoardLog(place / "tensorboard", training, prepared.steps))
    return logs


def _scene(prepared: Prepared, training: Training) -> dict[str, Any]:
    """The graph, the labels that each node holds, and the method in words, as JSON values."""
    graph, task = training.network.graph, training.task
    found: dict[str, Any] = {
        "n": graph.n,
        "directed": graph.directed,
        "edges": graph.edge_array.tolist(),
        "labels": graph.labels,
        "dim": task.layout.dim,
        "row_bytes": task.layout.dim * training.X.element_size(),
        "steps": prepared.steps,
        **prepared.method,
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
        self._stride = stride(steps // training.local_steps, len(self._graph.arcs.senders))
        lines = path.read_text("utf-8").splitlines()
        self._last = {name: value for name, value in json.loads(lines[-1]).items() if name != "step"} if lines else None

    def see(self, step: Step) -> None:
        """Log the weights of a step, if it is one of those to record and they are new."""
        if self._stride is None or step.plan is None or (step.t // self._local_steps) % self._stride:
            return
        if all(W.whole for W in step.plan.matrices) and (line := encoded(step.plan, self._graph)) != self._last:
            self._last = line
            self.file.write(json.dumps({"step": step.t, **line}, separators=(",", ":")) + "\n")


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
