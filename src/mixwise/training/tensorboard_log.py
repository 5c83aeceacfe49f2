"""Files for TensorBoard: the numbers of every record, a picture of the graph, and from time to time one of W.

`tensorboard=true` in a recipe writes to DIR/<variant>/seed-<s>/tensorboard/; `tensorboard --logdir DIR` shows all runs
of a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.graphs.drawing import graph_figure, is_drawable
from mixwise.protocols import Plan
from mixwise.training.loop import Record
from mixwise.training.run_log import Log

_MAX_HEAT_MAPS = 30  # of one run
_MAX_NODES = 512  # the cells of a larger heat map are too small to see
_SIDE = 256  # pixels; the smallest width of a heat map

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)


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
        self._plan: Plan | None = None  # of the last mixing
        self._every = -(-steps // _MAX_HEAT_MAPS)
        self._next = t

    def flush(self) -> None:
        """Make all numbers visible to readers."""
        self.file.flush()

    def see(self, t: int, plan: Plan | None) -> None:
        """Remember the weights of a step for the next picture."""
        self._plan = plan or self._plan

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
