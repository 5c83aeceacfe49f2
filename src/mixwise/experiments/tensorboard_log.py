"""Writes a run for TensorBoard: the numbers of every record, a picture of the graph, and W as it changes.

`tensorboard=true` in a recipe writes to DIR/<variant>/seed-<s>/tensorboard/; `tensorboard --logdir DIR` shows all runs
of a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.drawing import graph_figure, is_drawable
from mixwise.protocols import Plan
from mixwise.training import Record
from mixwise.training.training import Step

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_MAX_HEAT_MAPS = 30  # of one run
_MAX_NODES = 512  # the cells of a larger heat map are too small to see
_SIDE = 256  # pixels; the smallest width of a heat map

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)


def check_installed() -> None:
    """Raise an error with the install command if TensorBoard is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tensorboard=true needs the package tensorboard, which is not installed; pip install 'mixwise[tensorboard]'"
        ) from None


class TensorBoardLog:
    """Writes one run while it trains.

    Args:
        folder: the folder of the run; None to write nothing.
        graph: the graph of the run.
        done: the number of steps done before; anything an earlier process wrote about later steps is hidden.
        steps: the number of steps in the run.
    """

    def __init__(self, folder: Path | None, graph: Graph, done: int, steps: int) -> None:
        self.graph, self._drawn = graph, False
        self._plan: Plan | None = None  # of the last mixing
        self._every = -(-steps // _MAX_HEAT_MAPS)
        self._next = done
        self._writer: SummaryWriter | None = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done if done else None)

    def see(self, step: Step) -> None:
        """Remember the weights of a step for the next picture."""
        self._plan = step.plan or self._plan

    def add(self, record: Record) -> None:
        """Write the numbers of a record and, from time to time, a picture of the weights of the last mixing."""
        if self._writer is None:
            return
        for name, value in record.values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, record.step)
        for name, seconds in record.seconds.items():
            self._writer.add_scalar(f"seconds/{name}", seconds, record.step)
        if record.step >= self._next:
            self._add_pictures(self._writer, record.step)
            self._next = record.step + self._every

    def _add_pictures(self, writer: SummaryWriter, step: int) -> None:
        if not self._drawn and is_drawable(self.graph):
            self._drawn = True
            writer.add_figure("graph", graph_figure(self.graph), step)
        plan = self._plan
        if plan is None or self.graph.n > _MAX_NODES or not plan.params or not all(W.whole for W in plan.matrices):
            return
        writer.add_image("W", heat_map_pixels(plan.params_product), step, dataformats="HWC")
        if plan.updates is not None:
            writer.add_image("W of the updates", heat_map_pixels(plan.updates_product), step, dataformats="HWC")

    def flush(self) -> None:
        """Make everything written so far visible to TensorBoard."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


def heat_map_pixels(W: npt.NDArray[np.float64]) -> Pixels:
    """Row i is what node i sends, column j what node j receives; white for 0, dark blue for 1."""
    from matplotlib import colormaps

    cells = (colormaps["Blues"](np.clip(W, 0, 1))[..., :3] * 255).round().astype(np.uint8)
    each = max(1, -(-_SIDE // len(W)))
    pixels: Pixels = cells.repeat(each, axis=0).repeat(each, axis=1)
    return pixels
