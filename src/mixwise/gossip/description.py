"""What a rank is made of, as short lines of text that can be compared with those of other ranks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix

Lines = dict[str, str]  # "parameter 'fc.weight' has shape" -> "(10, 64)"


def describe_model(module: nn.Module) -> Lines:
    """Shape, dtype and role of every parameter and buffer."""
    lines: Lines = {}
    for name, parameter in module.named_parameters():
        lines |= _described(f"parameter {name!r}", parameter)
        lines[f"parameter {name!r} is"] = "trained" if parameter.requires_grad else "frozen"
    for name, buffer in module.named_buffers():
        lines |= _described(f"buffer {name!r}", buffer)
    return lines


def describe(what: str, value: object) -> Lines:
    """The value as lines: its kind and, going down, its public attributes.

    >>> describe("the policy", {"period": 10})
    {'the policy is': '1 entries', "the policy, ['period'] =": '10'}
    """
    return {f"{what}{path}": text for path, text in _lines(value, "", ())}


def _described(what: str, tensor: torch.Tensor) -> Lines:
    return {f"{what} has shape": str(tuple(tensor.shape)), f"{what} has dtype": str(tensor.dtype)}


def _lines(value: object, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    here = f"{path} is" if not path else f", {path} ="
    if isinstance(value, str | int | float | bool | None | torch.dtype):
        yield here, repr(value)
    elif isinstance(value, Graph):
        kind = "arcs" if value.directed else "edges"
        sum_of_edges = _checksum(value.edge_array)
        yield here, f"a graph with {value.n} nodes and {len(value.edge_array)} {kind}, {sum_of_edges}"
    elif isinstance(value, MixingMatrix):
        yield here, f"weights of kind {value.kind}, {_checksum(value.weights)}, for {value.graph!r}"
        yield from _lines(value.graph, f"{path}.graph".strip("."), above)
    elif isinstance(value, np.ndarray | torch.Tensor):
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        yield here, f"an array of shape {array.shape}, {array.dtype}, {_checksum(array)}"
    elif isinstance(value, list | tuple):
        yield here, f"{len(value)} values"
        for number, part in enumerate(value):
            yield from _lines(part, f"{path}[{number}]", above)
    elif isinstance(value, Mapping):
        yield here, f"{len(value)} entries"
        for name, part in value.items():
            yield from _lines(part, f"{path}[{name!r}]", above)
    elif isinstance(value, type | FunctionType):
        yield here, value.__qualname__
    else:
        yield here, type(value).__name__  # no repr: it may hold an address, which no two ranks share
        if id(value) not in above and hasattr(value, "__dict__"):
            for name, part in vars(value).items():
                if not name.startswith("_"):
                    yield from _lines(part, f"{path}.{name}".strip("."), (*above, id(value)))


def _checksum(array: npt.NDArray[Any]) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"
