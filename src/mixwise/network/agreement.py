"""Checks that all processes are set up alike; if not, names the one that differs, and how."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mixwise.errors import MixwiseError, TrainingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.transport import Transport

Lines = dict[str, str]  # "parameter 'fc.weight' has shape" -> "(10, 64)"


def check_alike(lines: Lines, error: MixwiseError | None, transport: Transport | None) -> None:
    """Raise this rank's own error, or an error on every rank if any rank has one or is described by other lines."""
    told = None
    if transport is not None:
        ranks = [transport.name(rank) for rank in range(transport.world)]
        told = difference(_texts_of_all(report(lines, error), transport), ranks)
    if error is not None:
        raise error
    if told is not None:
        raise TrainingError(told)


def report(lines: Lines, error: Exception | None) -> str:
    """The report of a rank to the others: its description, or why it cannot continue."""
    return json.dumps({"error": None if error is None else str(error), "lines": lines})


def difference(reports: Sequence[str], ranks: Sequence[int]) -> str | None:
    """The error to raise on every rank, given the reports of these ranks; None if they agree."""
    read = [json.loads(text) for text in reports]
    for rank, told in zip(ranks, read, strict=True):
        if told["error"] is not None:
            return f"rank {rank} cannot continue: {told['error']}"
    # The odd one out is named, even if it is rank 0; with two halves, the first that differs from rank 0.
    usual = reports.index(Counter(reports).most_common(1)[0][0])
    for rank, text, told in zip(ranks, reports, read, strict=True):
        if text != reports[usual]:
            how = _first_difference(told["lines"], read[usual]["lines"])
            return f"rank {rank} differs from rank {ranks[usual]}: {how}; all processes need the same"
    return None


def _first_difference(own: Lines, usual: Lines) -> str:
    for key in chain(own, usual):
        if key not in own:
            return f"it lacks: {key} {usual[key]}"
        if key not in usual:
            return f"it alone has: {key} {own[key]}"
        if own[key] != usual[key]:
            return f"{key} {own[key]} instead of {usual[key]}"
    return "another order of parameters or buffers"


def _texts_of_all(text: str, transport: Transport) -> list[str]:
    """The texts of all processes, by rank; long texts travel only if they differ."""
    data, device = text.encode(), transport.device
    digest = torch.frombuffer(bytearray(blake2b(data, digest_size=24).digest()), dtype=torch.int64)
    head = torch.cat([digest, torch.tensor([len(data)])])[None].to(device)
    heads = transport.gather(head, "comparing the processes")
    if bool((heads == heads[0]).all()):
        return [text] * transport.world
    lengths = heads[:, -1].tolist()
    padded = torch.zeros(1, max(lengths), dtype=torch.uint8)
    padded[0, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = transport.gather(padded.to(device), "comparing the processes")
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]


# --- descriptions ---
def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer without what `torch.compile` puts into it.

    >>> plain_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return name.replace("_orig_mod.", "")


def describe_model(module: nn.Module) -> Lines:
    """Shape, dtype and role of every parameter and buffer."""
    lines: Lines = {}
    for name, parameter in module.named_parameters():
        name = plain_name(name)
        lines |= _described(f"parameter {name!r}", parameter)
        lines[f"parameter {name!r} is"] = "trained" if parameter.requires_grad else "frozen"
    for name, buffer in module.named_buffers():
        lines |= _described(f"buffer {plain_name(name)!r}", buffer)
    return lines


def describe(what: str, value: object) -> Lines:
    """The value as lines: its kind and, recursively, its public attributes.

    >>> describe("the policy", {"period": 10})
    {'the policy is': '1 entries', "the policy, ['period'] =": '10'}
    """
    return {f"{what}{path}": text for path, text in _lines(value, "", ())}


def _described(what: str, tensor: torch.Tensor) -> Lines:
    return {f"{what} has shape": str(tuple(tensor.shape)), f"{what} has dtype": str(tensor.dtype)}


def _lines(value: object, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    parts: dict[str, object] = {}  # by their paths
    if isinstance(value, str | int | float | bool | None | torch.dtype):
        text = repr(value)
    elif isinstance(value, Graph):
        kind = "arcs" if value.directed else "edges"
        text = f"a graph with {value.n} nodes and {len(value.edge_array)} {kind}, {_checksum(value.edge_array)}"
    elif isinstance(value, MixingMatrix):
        text = f"weights of kind {value.kind}, {_checksum(value.weights)}, for {value.graph!r}"
        parts = {f"{path}.graph": value.graph}
    elif isinstance(value, np.ndarray | torch.Tensor):
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        text = f"an array of shape {array.shape}, {array.dtype}, {_checksum(array)}"
    elif isinstance(value, list | tuple):
        text, parts = f"{len(value)} values", {f"{path}[{number}]": part for number, part in enumerate(value)}
    elif isinstance(value, Mapping):
        text, parts = f"{len(value)} entries", {f"{path}[{name!r}]": part for name, part in value.items()}
    elif isinstance(value, type | FunctionType):
        text = value.__qualname__
    else:
        text = type(value).__name__  # no repr: it may hold an address, which differs between ranks
        if id(value) not in above:
            public = {name: part for name, part in getattr(value, "__dict__", {}).items() if name[0] != "_"}
            parts, above = {f"{path}.{name}": part for name, part in public.items()}, (*above, id(value))
    yield f", {path} =" if path else " is", text
    for below, part in parts.items():
        yield from _lines(part, below.strip("."), above)


def _checksum(array: npt.NDArray[Any]) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"
