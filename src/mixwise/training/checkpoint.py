"""Checkpoints by nodes: each process writes the state of the nodes that it owns; a reader takes the nodes it needs.

    step-00000120.nodes-0-3-of-16.safetensors       after 120 steps, the rows of nodes 0 to 3

Tensors, with the plain values as JSON and a checksum in the header; loading one never runs code. A file is written
beside its place, synced, and then moved there. The two newest complete checkpoints are kept: a run that is killed, or a
machine that stops, at any moment leaves a complete one, and a damaged one is replaced by the one before it. It does not
matter how the nodes were divided over processes when it was written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedRandom, BufferedReader
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mixwise.errors import TrainingError
from mixwise.state import Tensors, decode, encode, owner_of
from mixwise.storage import replacing, sync_folder
from mixwise.training.training import Training

_NAME = re.compile(r"step-(\d+)\.nodes-(\d+)-(\d+)-of-(\d+)\.safetensors")
FORMAT = 2
_LONG = 1 << 18  # numbers of a row that is read by itself
_MAX_HEADER = 100_000_000  # bytes; the same limit as in safetensors
_SUM, _NO_SUM = rb"\"sha256\": \"", b"0" * 64  # in the JSON in the header of a file, first as zeros
_log = logging.getLogger(__name__)


class Header(BaseModel):
    """The plain values of a file."""

    sha256: str = ""
    format: int = 1
    nodes: tuple[int, int]
    arcs: dict[str, list[int]]
    models: str  # the name of the tensor that holds the models
    values: dict[str, Any]


def save_checkpoint(training: Training, folder: Path) -> None:
    """Save everything that the next step depends on, as far as it belongs to the owned nodes; a collective call."""
    network, nodes = training.network, training.network.nodes
    encoded = encode(training.state(), nodes)
    tensors = encoded.tensors
    models = training.models
    header = Header(
        sha256=_NO_SUM.decode(),
        format=FORMAT,
        nodes=(nodes.start, nodes.stop),
        arcs=encoded.arcs,
        models=next(name for name, rows in tensors.items() if rows is models),
        values=encoded.values,
    )
    if nodes.start > 0:  # shared values are written once
        tensors = {name: value for name, value in tensors.items() if owner_of(name)[1] != "shared"}
    path = folder / _name(training.t, nodes.start, nodes.stop, network.graph.n)
    metadata = {"mixwise": json.dumps(header.model_dump())}
    try:
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
        with replacing(path) as temporary:
            save_file({name: v.contiguous() for name, v in tensors.items()}, temporary, metadata)
            with temporary.open("rb+") as file:
                at, _, found = _checksum(file)
                file.seek(at)
                file.write(found)
    except (SafetensorError, OSError) as error:
        raise TrainingError(f"the checkpoint {path} cannot be written: {error}; the one before it is kept") from None
    own = torch.tensor([[nodes.start, nodes.stop]]).repeat(len(nodes), 1)
    blocks = network.measuring().gather(own).tolist()  # returns when all have written
    if nodes.start == 0:  # by name: a shared file system may show the files of other machines later
        new = {folder / _name(training.t, start, stop, network.graph.n) for start, stop in blocks}
        _remove_others(folder, new, training.t)


def newest_step(folder: Path, fits: Callable[[int], str] = lambda step: "") -> int | None:
    """Return the step of the newest complete and intact checkpoint, or None if there is no complete one.

    `fits` may find something else that is wrong with a step, in words. A step that is left out is logged; if none
    remains, that is an error.
    """
    wrong = ""
    for step, paths in sorted(_complete(folder).items(), reverse=True):
        damaged = next((path for path in paths if not _is_intact(path)), None)
        found = fits(step) if damaged is None else f"the checkpoint {damaged} is damaged"
        if wrong:
            _log.warning("%s; the one before it is used" if not found else "%s", wrong)
        if not found:
            return step
        wrong = found
    if wrong:
        raise TrainingError(f"{wrong}, and none before it can be used; delete its folder to restart that run")
    return None


def _checksum(file: BufferedReader | BufferedRandom) -> tuple[int, bytes, bytes]:
    """Return the position of the checksum in a file, the one that is written there, and the one that should be.

    It is that of the whole file with zeros in its place. A file of 0.2.0 has none.
    """
    start = file.read(8)
    header = file.read(min(int.from_bytes(start, "little"), _MAX_HEADER))
    at = header.find(_SUM) + len(_SUM)
    saved = header[at : at + 64] if at >= len(_SUM) else b""
    digest = hashlib.sha256(start + (header[:at] + _NO_SUM + header[at + 64 :] if saved else header))
    return 8 + at, saved, hashlib.file_digest(file, lambda: digest).hexdigest().encode()


def _is_intact(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            _, saved, found = _checksum(file)
        with safe_open(path, framework="pt") as opened:
            opened.metadata()["mixwise"]
    except (SafetensorError, OSError, KeyError, TypeError):
        return False
    return saved in (b"", found)


def keep_only(folder: Path, step: int) -> None:
    """Remove all files that are not of the complete checkpoint of this step or the one before it, if it exists."""
    if kept := _complete(folder).get(step):
        _remove_others(folder, set(kept), step)


def _remove_others(folder: Path, kept: set[Path], step: int) -> None:
    """Remove all files but these of a step and those of the complete checkpoint before it."""
    before = max(((at, paths) for at, paths in _complete(folder).items() if at < step), default=(0, ()))[1]
    for path in folder.glob("step-*"):
        if path not in kept and path not in before:
            path.unlink(missing_ok=True)


def load_checkpoint(training: Training, folder: Path, step: int | None = None) -> None:
    """Put a new training where the checkpoint of a step was, by default the newest complete one."""
    nodes = training.network.nodes
    tensors, header = read_checkpoint(folder, nodes, step=step)
    with must_fit(folder):
        training.load_state(decode(tensors, header.values, nodes))


def read_checkpoint(
    folder: Path, nodes: range | None = None, wanted: Callable[[str], bool] = lambda name: True, step: int | None = None
) -> tuple[Tensors, Header]:
    """Return the encoded tensors that belong to these nodes, by default to all, and the header of the first file."""
    step = newest_step(folder) if step is None else step
    paths = () if step is None else _complete(folder).get(step, ())
    if not paths:
        at = "" if step is None else f" of step {step}"
        raise TrainingError(f"{folder} holds no complete checkpoint{at}; delete that folder to restart the run")
    pieces: dict[str, list[torch.Tensor]] = {}
    headers = []
    for path in paths:
        with must_fit(path):
            headers.append(_read_part(path, nodes, wanted, pieces))
    return {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in pieces.items()}, headers[0]


def _read_part(
    path: Path, nodes: range | None, wanted: Callable[[str], bool], pieces: dict[str, list[torch.Tensor]]
) -> Header:
    """Add the tensors of these nodes in a file to the pieces; return its header."""
    with safe_open(path, framework="pt") as file:
        header = _header(path, file)
        first, stop = header.nodes
        low, high = (first, stop) if nodes is None else (max(first, nodes.start), min(stop, nodes.stop))
        for name in filter(wanted, file.keys()):
            at, owner = owner_of(name)
            if owner == "shared":
                pieces[name] = [file.get_tensor(name)]
            elif low < high:
                begin, end = low - first, high - first
                if owner == "arcs":
                    ends = list(accumulate(header.arcs[at], initial=0))
                    begin, end = ends[begin], ends[end]
                pieces.setdefault(name, []).append(_rows(file.get_slice(name), slice(begin, end)))
    return header


def _header(path: Path, file: Any) -> Header:
    values = json.loads(file.metadata()["mixwise"])
    if values.get("format") != FORMAT:
        raise TrainingError(
            f"{path} was written by another version of mixwise (checkpoint format {values.get('format', 1)}, this "
            f"is {FORMAT}); finish the run with that version, or restart it"
        )
    return Header.model_validate(values)


def _rows(saved: Any, rows: slice) -> torch.Tensor:
    """Return some rows of a tensor in a file; long ones are read one by one, so that no second copy exists."""
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
    """Return the files of every step for which those of all nodes exist."""
    parts: dict[tuple[int, int], list[tuple[int, int, Path]]] = {}  # (step, n) -> (first node, last node, file)
    for path in folder.glob("step-*"):
        if (name := _NAME.fullmatch(path.name)) and path.is_file():
            step, first, last, n = map(int, name.groups())
            parts.setdefault((step, n), []).append((first, last, path))
    complete: dict[int, tuple[Path, ...]] = {}
    for (step, n), found in parts.items():
        firsts, lasts, paths = zip(*sorted(found), strict=True)
        if [*firsts, n] == [0, *(last + 1 for last in lasts)]:  # no gap, and not the files of two divisions
            complete[step] = paths
    return complete


@contextmanager
def must_fit(path: Path) -> Iterator[None]:
    """Report errors while a checkpoint is read as one that does not fit the run."""
    try:
        yield
    except Exception as error:  # an edited header can break any rule
        reason = "its header is damaged" if isinstance(error, ValidationError) else error
        raise TrainingError(
            f"the checkpoint {path} does not fit this run ({reason}); delete its folder to restart that run"
        ) from None
