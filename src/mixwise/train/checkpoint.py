"""Checkpoints by nodes: each process writes what belongs to the nodes that it owns, whoever reads takes what it needs.

    step-00000120.nodes-0-3-of-16.safetensors       after 120 steps, the rows of nodes 0 to 3

Tensors, with the plain values as JSON in the header; loading one never runs code. A file is written beside its place
and then moved there, and the checkpoint before stays until the files of all nodes are there: a run that is killed at
any moment leaves a complete one. How the nodes were divided over processes when it was written does not matter.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mixwise.algorithms.base import Belongs
from mixwise.errors import TrainingError
from mixwise.train.training import Training

_NAME = re.compile(r"step-(\d+)\.nodes-(\d+)-(\d+)-of-(\d+)\.safetensors")
_LONG = 1 << 18  # numbers of a row that is read by itself
_UNREADABLE = (SafetensorError, OSError, KeyError, IndexError, TypeError, ValueError, RuntimeError)

Tensors = dict[str, torch.Tensor]


def save_checkpoint(training: Training, folder: Path) -> None:
    """Everything that the next step depends on, as far as it belongs to the owned nodes; called by all processes."""
    network, nodes = training.network, training.network.nodes
    tensors, values = training.state()
    belongs = {name: _belongs(training, name, tensors[name]) for name in sorted(tensors)}
    names = getattr(training.task, "names", range(network.graph.n))  # other than 0 to n − 1 where nodes were lost
    values["names"] = list(names[nodes.start : nodes.stop])
    values |= {"nodes": [nodes.start, nodes.stop], "arcs": training.algorithm.arcs_into(nodes), "belongs": belongs}
    if nodes.start > 0:  # what all share is written once
        tensors = {name: value for name, value in tensors.items() if belongs[name] != "all"}
    path = folder / _name(training.t, nodes.start, nodes.stop, network.graph.n)
    temporary = path.with_suffix(".part")
    try:
        folder.mkdir(exist_ok=True)
        save_file({name: v.contiguous() for name, v in tensors.items()}, temporary, {"mixwise": json.dumps(values)})
        os.replace(temporary, path)
    except (SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"the checkpoint {path} cannot be written: {error}; the one before it is kept") from None
    with network.uncounted():  # comes back when all have written
        blocks = network.gather(torch.tensor([[nodes.start, nodes.stop]]).repeat(len(nodes), 1)).tolist()
    if nodes.start == 0:  # by name: a shared file system may show the files of other machines later
        _remove_others(folder, {folder / _name(training.t, start, stop, network.graph.n) for start, stop in blocks})


def newest_step(folder: Path) -> int | None:
    """After how many steps the newest complete checkpoint was taken, if there is one."""
    return max(_complete(folder), default=None)


def names_of_nodes(folder: Path, step: int) -> list[int]:
    """The nodes that a complete checkpoint holds, by the numbers that they had when the run began."""
    names: list[int] = []
    for path in _complete(folder)[step]:
        try:
            with safe_open(path, framework="pt") as file:
                names += json.loads(file.metadata()["mixwise"])["names"]
        except _UNREADABLE as error:
            raise _unfit(path, error) from None
    return names


def keep_only(folder: Path, step: int) -> None:
    """Remove all files that are not of the complete checkpoint of this step, if that is there."""
    if kept := _complete(folder).get(step):
        _remove_others(folder, set(kept))


def _remove_others(folder: Path, kept: set[Path]) -> None:
    for path in folder.glob("step-*"):
        if path not in kept:
            path.unlink(missing_ok=True)


def load_checkpoint(training: Training, folder: Path, step: int | None = None) -> None:
    """Put a freshly made training where the checkpoint of a step was, by default the newest complete one."""
    tensors, values = read_checkpoint(folder, training.network.nodes, step=step)
    try:
        training.load_state(tensors, values)
    except _UNREADABLE as error:
        raise _unfit(folder, error) from None


def read_checkpoint(
    folder: Path,
    nodes: range | None = None,
    wanted: Callable[[str], bool] = lambda name: True,
    step: int | None = None,
) -> tuple[Tensors, dict[str, Any]]:
    """The tensors that belong to these nodes, by default to all, and the plain values."""
    complete = _complete(folder)
    parts = complete.get(max(complete, default=-1) if step is None else step)
    if parts is None:
        raise TrainingError(
            f"{folder} holds no complete checkpoint{'' if step is None else f' of step {step}'}; "
            f"delete that folder to start the run anew"
        )
    pieces: dict[str, list[torch.Tensor]] = {}
    shared: dict[str, Any] = {}
    for path in parts:
        try:
            values = _read_part(path, nodes, wanted, pieces)
        except _UNREADABLE as error:
            raise _unfit(path, error) from None
        shared = shared or values  # of the first part
    return {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in pieces.items()}, shared


def _read_part(
    path: Path, nodes: range | None, wanted: Callable[[str], bool], pieces: dict[str, list[torch.Tensor]]
) -> dict[str, Any]:
    """Add what a file holds of these nodes to the pieces; the plain values."""
    with safe_open(path, framework="pt") as file:
        values: dict[str, Any] = json.loads(file.metadata()["mixwise"])
        first, stop = values["nodes"]
        low, high = (first, stop) if nodes is None else (max(first, nodes.start), min(stop, nodes.stop))
        arcs = list(accumulate(values["arcs"], initial=0))  # arcs into the nodes before each node of this part
        for name in file.keys():  # noqa: SIM118 - it is no dictionary
            belongs: Belongs = values["belongs"][name]
            if not wanted(name) or (belongs != "all" and low >= high):
                continue
            if belongs == "all":
                pieces[name] = [file.get_tensor(name)]
            else:
                begin, end = low - first, high - first
                rows = slice(begin, end) if belongs == "nodes" else slice(arcs[begin], arcs[end])
                pieces.setdefault(name, []).append(_rows(file.get_slice(name), rows))
    return values


def _rows(saved: Any, rows: slice) -> torch.Tensor:
    """Some rows of a tensor in a file; long ones one after the other, so that they are never there twice."""
    if rows.stop - rows.start < 2 or prod(saved.get_shape()[1:]) < _LONG:
        few: torch.Tensor = saved[rows]
        return few
    first = saved[rows.start : rows.start + 1]
    read: torch.Tensor = first.new_empty(rows.stop - rows.start, *first.shape[1:])
    for i in range(len(read)):
        read[i : i + 1] = saved[rows.start + i : rows.start + i + 1]
    return read


def _name(step: int, start: int, stop: int, n: int) -> str:
    return f"step-{step:08}.nodes-{start}-{stop - 1}-of-{n}.safetensors"


def _complete(folder: Path) -> dict[int, tuple[Path, ...]]:
    """The files of every step for which those of all nodes are there."""
    parts: dict[tuple[int, int], list[tuple[int, int, Path]]] = {}  # (step, n) -> (first node, last node, file)
    for path in folder.glob("step-*"):
        if name := _NAME.fullmatch(path.name):
            step, first, last, n = map(int, name.groups())
            parts.setdefault((step, n), []).append((first, last, path))
    complete = {}
    for (step, n), found in sorted(parts.items(), reverse=True):  # the smaller n last: nodes were lost at that step
        next_node = 0
        for first, last, _ in sorted(found):
            next_node = last + 1 if first == next_node else -1  # a gap, or files of two divisions
        if next_node == n:
            complete[step] = tuple(path for _, _, path in sorted(found))
    return complete


def _belongs(training: Training, name: str, value: torch.Tensor) -> Belongs:
    """Whose a tensor of the state is."""
    part, _, rest = name.partition(".")
    if part in ("X", "start", "sums"):
        return "nodes"
    if part == "algorithm":
        return training.algorithm.belongs.get(rest, "nodes")
    if part == "task":
        return "nodes" if rest.startswith(getattr(training.task, "of_nodes", ())) else "all"
    if part == "optimizer":  # an element-wise one remembers a number per entry of the rows, or one for all
        return "nodes" if value.ndim > 0 else "all"
    return "nodes" if name.endswith((".rows", ".columns")) else "all"  # of policies and of matrices that wait


def _unfit(path: Path, error: Exception) -> TrainingError:
    return TrainingError(
        f"the checkpoint {path} does not fit this run ({error}); delete its folder to start that run anew"
    )
