"""What a run needs, said before it starts; a run that cannot fit is refused with what would make it fit.

Legend: n nodes, of which this process has m; rows of d numbers; a tensor (m, d) is the unit that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mixwise.errors import ConfigError
from mixwise.experiments.free_memory import free_memory, process_memory, processes_here
from mixwise.graphs import Graph
from mixwise.models.freezing import blocks_of, first_trained, from_part
from mixwise.network import block
from mixwise.network.world import World
from mixwise.tasks import ModuleTask, Task
from mixwise.tasks.pass_memory import buffer_bytes, evaluation_bytes, pass_bytes
from mixwise.training.row_count import RowCount, count_rows
from mixwise.training.training import Training

GB = 10**9
_MOST_TENSORS = 16  # more than any method holds: where even these are small, nobody needs to count


@dataclass(frozen=True)
class Need:
    """What one process of a run needs at its peak, in bytes.

    Attributes:
        nodes: m, those whose rows it has.
        processes: how many the run has.
        dim: d.
        itemsize: bytes of a number in a row.
        rows: how many tensors (m, d).
        arriving: rows of other processes' nodes that are there while they are mixed.
        one_pass, evaluation: what computing gradients, and judging models, takes besides.
        buffers: what the nodes' models carry besides parameters.
        process: what is there already: the program, the data, the module.
        free: what is free, if somebody can tell.
    """

    nodes: int
    processes: int
    dim: int
    itemsize: int
    rows: RowCount
    arriving: int = 0
    one_pass: int = 0
    evaluation: int = 0
    buffers: int = 0
    process: int = 0
    free: int | None = None

    @property
    def unit(self) -> int:
        """Bytes of a tensor (m, d)."""
        return self.nodes * self.dim * self.itemsize

    @property
    def arriving_bytes(self) -> int:
        """Those rows that come from other processes."""
        return self.arriving * self.dim * self.itemsize

    @property
    def row_bytes(self) -> int:
        """All rows, when there are most of them."""
        return round(self.rows.most * self.unit) + self.arriving_bytes

    @property
    def still(self) -> int:
        """What is not there yet: the largest of its three moments, gradients, mixing, judging."""
        rows = self.rows
        moments = (
            rows.gradients * self.unit + self.one_pass,
            self.row_bytes,
            (2 + rows.optimizer + rows.algorithm) * self.unit + self.evaluation,
        )
        return round(max(moments)) + self.buffers

    @property
    def total(self) -> int:
        """All of it."""
        return self.process + self.still

    def __str__(self) -> str:
        here = f"{self.nodes} nodes" + (f" in each of {self.processes} processes" if self.processes > 1 else "")
        tensors = f"{self.rows.most:.1f}".removesuffix(".0")
        rows = f"{here} × {_millions(self.dim)} parameters × {tensors} tensors ({self.rows}) = {size(self.row_bytes)}"
        return f"{rows}; with the data, the program and a pass of a node {size(self.total)}"


def memory_needed(
    task: Task, graph: Graph, world: World, start: Callable[[Task], Training], *, least: int = GB
) -> Need | None:
    """What a run needs, if that may be more than `least` bytes; the same answer on every process.

    Args:
        task: what is learned; nothing of it is started.
        graph: who talks to whom.
        world: the processes.
        start: makes the run of another task of as many nodes in one process: for the rehearsal.
        least: below this nobody asks.
    """
    m = math.ceil(graph.n / world.size)
    device, dtype = _device(task), task.dtype if isinstance(task, ModuleTask) else torch.float64
    if _MOST_TENSORS * m * task.layout.dim * dtype.itemsize < least:
        return None
    d = task.layout.dim
    rows = count_rows(start, graph.n, d, groups=task.layout.groups, dtype=dtype)
    free = free_memory(device)
    passes = isinstance(task, ModuleTask) and (free is None or 4 * d * dtype.itemsize < free)  # else no use
    return Need(
        nodes=m,
        processes=world.size,
        dim=d,
        itemsize=dtype.itemsize,
        rows=rows,
        arriving=_arriving(graph, world.size),
        one_pass=pass_bytes(task, m) if isinstance(task, ModuleTask) and passes else 0,
        evaluation=evaluation_bytes(task) if isinstance(task, ModuleTask) and passes else 0,
        buffers=buffer_bytes(task, m) if isinstance(task, ModuleTask) else 0,
        process=process_memory() if device.type == "cpu" else 0,
    )


def checked(need: Need, task: Task, world: World) -> Need:
    """The same with what is free; refuse a run that does not fit into it. To be called by all processes.

    Args:
        need: of the run.
        task: what is learned.
        world: the processes.
    """
    here = processes_here(world.size)

    def decide() -> int | None:
        free = free_memory(_device(task), here)
        if free is None or need.still <= free:
            return free
        shared = f" for each of {here} processes" if here > 1 else ""
        options = ways_to_fit(need, free, task)
        raise ConfigError(
            f"the run does not fit: {need}, of which {size(need.still)} are still to come, and {size(free)} are "
            f"free{shared}; {'what would fit: ' + '; '.join(options) if options else 'nothing known would make it fit'}"
        )

    return replace(need, free=world.decide(decide))


def statement(need: Need | None) -> str | None:
    """One line, before a run starts, if it needs much."""
    if need is None or need.total < GB:
        return None
    return f"memory: {need}" + ("" if need.free is None else f"; {size(need.free)} are free")


def size(number: float) -> str:
    """Bytes for people.

    >>> size(17_320_000_000), size(450_000_000)
    ('17.3 GB', '0.45 GB')
    """
    return f"{number / GB:.{1 if number >= GB else 2}f} GB"


def ways_to_fit(need: Need, free: int, task: Task) -> list[str]:
    """What would make it fit, each with what it would need then."""
    found = []
    for train, dim in _trained_parts(task):  # from the largest part
        part = replace(need, dim=dim)
        if part.still <= free:
            found.append(f"task.train={train} ({size(part.total)}, {_millions(dim)} parameters)")
            break
    fitting = next((m for m in range(need.nodes - 1, 0, -1) if replace(need, nodes=m).still <= free), None)
    if fitting is not None:
        if need.processes == 1:
            found.append(f"at most {fitting} nodes ({size(replace(need, nodes=fitting).total)})")
        machines = math.ceil(need.nodes / fitting)
        each = replace(need, nodes=math.ceil(need.nodes / machines))
        found.append(f"{machines * need.processes} machines of this size with torchrun ({size(each.total)} each)")
    return found


def _device(task: Task) -> torch.device:
    return task.device if isinstance(task, ModuleTask) else torch.device("cpu")


def _trained_parts(task: Task) -> list[tuple[int | str, int]]:
    """What of a model that is trained as a whole could be trained alone, and how many parameters that is."""
    if not isinstance(task, ModuleTask) or any(not p.requires_grad for p in task.template.parameters()):
        return []
    found: list[tuple[int | str, int]] = []
    choices: list[int | Literal["head"]] = [*range(len(blocks_of(task.template)), 0, -1), "head"]
    for train in choices:
        try:
            first = first_trained(task.template, train)
        except ConfigError:  # no head that is known
            continue
        if first is not None:
            parts = from_part(task.template, first)
            found.append((train, sum({id(p): p.numel() for part in parts for p in part.parameters()}.values())))
    return [(train, dim) for train, dim in found if dim < task.layout.dim]


def _arriving(graph: Graph, processes: int) -> int:
    """The most rows that come from other processes in one mixing, if all edges are used."""
    senders, receivers = graph.pattern.rows, graph.pattern.cols
    most = 0
    for nodes in (block(graph.n, rank, processes) for rank in range(processes)):
        here = (receivers >= nodes.start) & (receivers < nodes.stop)
        most = max(most, len(set(senders[here].tolist()) - set(nodes)))
    return most


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 10**5 else f"{number:,}"
