"""Memory use is estimated before a run starts; a run that would not fit is rejected with alternatives.

Legend: n nodes, of which this process owns m; rows of d numbers; a tensor (m, d) is the unit that counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from mixwise.errors import ConfigError
from mixwise.graphs import Graph
from mixwise.models.freezing import Trained, blocks_of, trained_parts
from mixwise.network import block
from mixwise.network.world import World
from mixwise.tasks import ModuleTask, Task
from mixwise.tasks.pass_memory import evaluation_bytes, pass_bytes
from mixwise.training.row_count import RowCount, count_rows, plain
from mixwise.training.training import Training

GB = 10**9
_LARGE = GB  # smaller runs are neither counted nor announced
_MOST_TENSORS = 16  # more than any method holds
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Need:
    """The estimated peak memory of one process of a run.

    Attributes:
        nodes: m, those whose rows the process owns.
        processes: how many the run has.
        dim: d.
        itemsize: bytes of a number in a row.
        rows: the number of tensors (m, d).
        arriving: rows of other processes' nodes that are held while they are mixed.
        passes: bytes of a gradient pass or an evaluation, and of buffers.
        process: bytes that are taken already, by the program, the data and the module.
        free: bytes that are free; None if unknown.
    """

    nodes: int
    processes: int
    dim: int
    itemsize: int
    rows: RowCount
    arriving: int = 0
    passes: int = 0
    process: int = 0
    free: int | None = None

    @property
    def row_bytes(self) -> int:
        """The bytes of all rows, at their peak."""
        return round((self.rows.most * self.nodes + self.arriving) * self.dim * self.itemsize)

    @property
    def new_bytes(self) -> int:
        """The bytes that are not taken yet, at the peak of a step: while rows are mixed, or during a pass."""
        held = round(self.rows.gradients * self.nodes * self.dim * self.itemsize)
        return max(self.row_bytes, held + self.passes)

    @property
    def total(self) -> int:
        """The bytes of the whole process."""
        return self.process + self.new_bytes

    def __str__(self) -> str:
        here = f"{self.nodes} nodes" + (f" in each of {self.processes} processes" if self.processes > 1 else "")
        tensors = f"{plain(self.rows.most)} tensors ({self.rows})"
        rows = f"{here} × {_millions(self.dim)} parameters × {tensors} = {size(self.row_bytes)}"
        free = "" if self.free is None else f"; {size(self.free)} free"
        return f"{rows}; {size(self.total)} with the program, the data and a pass{free}"


def check_module(make: Callable[[], nn.Module]) -> None:
    """Build a module without its memory, and reject one that would not fit with one row and one gradient."""
    try:
        with torch.device("meta"):
            parameters = list(make().parameters())
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ConfigError(f"the model cannot be built ({error}); correct task.model.options") from None
    dim, need = sum(each.numel() for each in parameters), 3 * sum(each.nbytes for each in parameters)
    free = free_memory(torch.device("cpu"))
    if free is not None and need > free:
        raise ConfigError(
            f"the model does not fit into memory: {_millions(dim)} parameters, {size(need)} with one row and one "
            f"gradient, but {size(free)} are free; take a smaller model"
        )


def check_memory(task: Task, graph: Graph, world: World, start: Callable[[Task], Training]) -> Need | None:
    """Estimate the memory of a run and reject a run that does not fit; None for a small run.

    All processes must call it.

    Args:
        task: what is learned; it starts no run.
        graph: the communication graph.
        world: the processes.
        start: makes the run of another task with as many nodes in one process, for the rehearsal.
    """
    m = math.ceil(graph.n / world.size)
    module = task if isinstance(task, ModuleTask) else None
    device, dtype = (torch.device("cpu"), torch.float64) if module is None else (module.device, module.dtype)
    inputs = 0 if module is None else module.batch * module.inputs.sample_size
    if _MOST_TENSORS * m * (task.layout.dim + inputs) * dtype.itemsize < _LARGE:
        return None
    here = min(world.size, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))  # processes on this machine
    free = world.decide(lambda: free_memory(device, here))
    need = Need(
        nodes=m,
        processes=world.size,
        dim=task.layout.dim,
        itemsize=dtype.itemsize,
        rows=count_rows(start, graph.n, task.layout.dim, groups=task.layout.groups, dtype=dtype),
        arriving=_arriving(graph, world.size),
        process=psutil.Process().memory_info().rss if device.type == "cpu" else 0,
        free=free,
    )
    if module is not None and (free is None or 8 * need.dim * need.itemsize < free):  # else a pass would not fit
        buffers = m * sum(buffer.nbytes for buffer in module.template.buffers())
        evaluation = evaluation_bytes(module)  # takes no memory; a pass takes about twice as much, for real
        pass_ = pass_bytes(module, m) if free is None or 3 * evaluation < free else 2 * evaluation
        need = replace(need, passes=max(pass_, evaluation) + buffers)
    world.decide(lambda: _reject_large(need, task, here))
    return need if need.total >= _LARGE else None


def _reject_large(need: Need, task: Task, here: int) -> None:
    if need.free is None or need.new_bytes <= need.free:
        return
    shared = f" for each of {here} processes" if here > 1 else ""
    options = "; ".join(alternatives(need, task))
    raise ConfigError(
        f"the run does not fit into memory: {need}{shared}, but {size(need.new_bytes)} more are needed; "
        + (f"what would fit: {options}" if options else "take a smaller model or a machine with more memory")
    )


def alternatives(need: Need, task: Task) -> list[str]:
    """Changes that would fit into the free memory, each with the memory that it would need."""
    found = []

    def fits(changed: Need) -> bool:
        return need.free is None or changed.new_bytes <= need.free

    for train, dim in _trained_parts(task):  # from the largest
        if fits(smaller := replace(need, dim=dim)):
            found.append(f"task.train={train} ({size(smaller.total)}, {_millions(dim)} parameters)")
            break
    if fits(rows := replace(need, passes=0)):
        found.append(f"a smaller pass: task.batch, task.accumulate, task.autocast ({size(rows.total)} without it)")
    fitting = next((m for m in range(need.nodes - 1, 0, -1) if fits(replace(need, nodes=m))), None)
    if fitting is not None and need.processes == 1:
        found.append(f"at most {fitting} nodes ({size(replace(need, nodes=fitting).total)})")
    if fitting is not None:
        machines = math.ceil(need.nodes / fitting)
        each = replace(need, nodes=math.ceil(need.nodes / machines))
        found.append(f"{machines * need.processes} machines of this size with torchrun ({size(each.total)} each)")
    return found


def _trained_parts(task: Task) -> Iterator[tuple[Trained, int]]:
    """Which part of a model could be trained alone, as `task.train`, and how many parameters it has; largest first."""
    if not isinstance(task, ModuleTask) or any(not p.requires_grad for p in task.template.parameters()):
        return
    choices: list[Trained] = [*range(len(blocks_of(task.template)), 0, -1), "head"]
    for train in choices:
        try:
            parts = trained_parts(task.template, train)
        except ConfigError:  # it has no head that is known
            return
        dim = sum({id(p): p.numel() for part in parts for p in part.parameters()}.values())
        if 0 < dim < task.layout.dim:
            yield train, dim


def _arriving(graph: Graph, processes: int) -> int:
    """The most rows that come from other processes in one mixing, if all edges are used."""
    senders, receivers = graph.pattern.rows, graph.pattern.cols
    most = 0
    for nodes in (block(graph.n, rank, processes) for rank in range(processes)):
        here = (receivers >= nodes.start) & (receivers < nodes.stop)
        heard = np.unique(senders[here])
        most = max(most, int(((heard < nodes.start) | (heard >= nodes.stop)).sum()))
    return most


# --- free memory ---
def free_memory(device: torch.device, processes: int = 1) -> int | None:
    """The bytes that each of several processes on this machine may still take; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    free = int(psutil.virtual_memory().available)
    return min([free, *_free_in_groups()]) // processes


def _free_in_groups(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """The free bytes in every control group with a limit that this process is in."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            place, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            place, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):  # the limit of a group holds for all groups inside it
            found += _free_in_group(place.joinpath(*parts[:depth]), *names)
    return found


def _free_in_group(group: Path, limit: str, usage: str, reclaimable: str) -> list[int]:
    """Limit minus usage; cached files can be dropped and count as free. Empty without a limit."""
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return []
    return [max(0, most - used + int(stat.get(reclaimable, 0)))]


# --- words ---
def size(number: float) -> str:
    """Format bytes for people.

    >>> size(17_320_000_000), size(450_000_000)
    ('17.3 GB', '0.45 GB')
    """
    return f"{number / GB:.{1 if number >= GB else 2}f} GB"


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 10**5 else f"{number:,}"
