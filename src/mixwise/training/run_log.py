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
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.drawing import graph_figure, is_drawable
from mixwise.mixing import MixingMatrix
from mixwise.parts import is_reference, kind, words
from mixwise.protocols import Plan
from mixwise.report.folder import Line, read_record
from mixwise.storage import sync, write_text
from mixwise.training.loop import Record

METRICS, TIMINGS, SCENE, WEIGHTS = "metrics.jsonl", "timings.jsonl", "scene.json", "weights.jsonl"
MAX_LINES = 200  # of weights.jsonl: a slider has no room for more
_MAX_NUMBERS = 400_000  # in weights.jsonl
_MAX_ARCS = 20_000  # a larger graph cannot be drawn
_MAX_HEAT_MAPS = 30  # of one run, in TensorBoard
_MAX_NODES = 512  # the cells of a larger heat map are too small to see
_SIDE = 256  # pixels; the smallest width of a heat map

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)


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
    logs: list[Log] = [_RecordLog(place / METRICS, Record.to_json), _RecordLog(place / TIMINGS, Record.timings_to_json)]
    if scene is not None:
        logs.append(_WeightsLog(place / WEIGHTS, graph, steps, local_steps))
    if tensorboard:
        logs.append(_TensorBoardLog(place / "tensorboard", graph, steps, t))
    return logs


def graph_scene(graph: Graph, dim: int, itemsize: int) -> dict[str, Any]:
    """The graph and the size of a row, as JSON values."""
    return {
        "n": graph.n,
        "directed": graph.directed,
        "edges": graph.edge_array.tolist(),
        "labels": graph.labels,
        "dim": dim,
        "row_bytes": dim * itemsize,
    }


def method_words(graph: str, placement: str | list[int], policy: Any, algorithm: Any) -> dict[str, Any]:
    """The graph, the policy and the algorithm of a run as its report names them."""
    return {
        "graph": graph,
        "placement": placement,
        "policy": words(policy),
        "policy_kind": kind(policy),
        "algorithm": words(algorithm),
        "algorithm_kind": kind(algorithm),
        "reference": is_reference(policy) or is_reference(algorithm),
    }


def cut_run(place: Path, step: int) -> None:
    """Keep only the records of the first steps."""
    for path in (place / METRICS, place / TIMINGS, place / WEIGHTS):
        _, size = records_before(path, step)
        if path.exists() and size < path.stat().st_size:
            os.truncate(path, size)  # not rewritten: a run that is killed here loses nothing that it needs


def records_before(path: Path, steps: int) -> tuple[list[dict[str, Any]], int]:
    """The records of the first `steps` steps, and their bytes, up to a line that is incomplete."""
    kept, size = [], 0
    with suppress(FileNotFoundError), path.open("rb") as lines:
        for line in lines:
            record = read_record(line, Line)
            if record is None or record["step"] >= steps or not line.endswith(b"\n"):
                break
            kept.append(record)
            size += len(line)
    return kept, size


class Log:
    """A file that grows while a run trains.

    Attributes:
        file: the open file; a `SummaryWriter` for TensorBoard.
    """

    def __init__(self, file: Any) -> None:
        self.file = file

    def see(self, t: int, plan: Plan | None) -> None:
        """Log what belongs to every step: the weights of its mixing, if it had one."""

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

    def __init__(self, path: Path, graph: Graph, steps: int, local_steps: int) -> None:
        super().__init__(path.open("a", encoding="utf-8"))
        self._graph, self._local_steps = graph, local_steps
        self._stride = stride(steps // local_steps, len(graph.arcs.senders))
        lines = path.read_text("utf-8").splitlines()
        self._last = {name: value for name, value in json.loads(lines[-1]).items() if name != "step"} if lines else None

    def see(self, t: int, plan: Plan | None) -> None:
        """Log the weights of a step, if it is one of those to record and they are new."""
        if self._stride is None or plan is None or (t // self._local_steps) % self._stride:
            return
        if all(W.whole for W in plan.matrices) and (line := encoded(plan, self._graph)) != self._last:
            self._last = line
            self.file.write(json.dumps({"step": t, **line}, separators=(",", ":")) + "\n")


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

    def __init__(self, folder: Path, graph: Graph, steps: int, t: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        # Anything that an earlier process wrote about later steps is hidden.
        super().__init__(SummaryWriter(str(folder), purge_step=t or None))
        self._graph, self._drawn = graph, False
        self._plan: Plan | None = None  # of the last mixing
        self._every = -(-steps // _MAX_HEAT_MAPS)
        self._next = t

    def flush(self) -> None:
        """Make all numbers visible to readers."""
        self.file.flush()

    def see(self, t: int, plan: Plan | None) -> None:
        """Remember the weights of a step for the next picture."""
        self._plan = plan or self._plan

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
