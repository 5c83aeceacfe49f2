"""The memory of a part between mixings: tensors by name, with their owner in the type.

A part (an algorithm, a policy, …) is a frozen value; everything that changes during a run is in its `State`,
made by `init`. Checkpoints, another division of the nodes over processes, and a run without some of its nodes need
only this class, and know nothing about the parts.

Legend: m nodes owned by this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix

Tensors = dict[str, torch.Tensor]


def counts_like(known: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved counts with these names; a `ValueError` if one is of another kind, or below 0.

    >>> counts_like({"t": 0, "seconds": 0.0}, {"t": 3, "seconds": 2})
    {'t': 3, 'seconds': 2}
    """
    found = {name: saved[name] for name in known}
    for name, value in found.items():
        kinds = (int, float) if isinstance(known[name], float) else (type(known[name]),)
        if type(value) not in kinds or value < 0:
            raise ValueError(f"{name} is {str(value)[:20]!r} in place of a count")
    return found


@dataclass
class State:
    """The memory of one part.

    Attributes:
        rows: tensors (m, …) with one row per owned node.
        arcs: tensors with one row per arc of `graph` into the owned nodes, sorted by receiver, then by sender.
        graph: the graph whose arcs these are.
        shared: values that are the same on all processes: tensors, arrays, numbers, strings, graphs, mixing matrices,
            tuples of them, or None.
        parts: the states of nested parts, by their names inside this one.
        scratch: derived values, such as prepared problems; never saved, and never visible in the results.
    """

    rows: Tensors = field(default_factory=dict)
    arcs: Tensors = field(default_factory=dict)
    graph: Graph | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, State] = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)

    def load(self, saved: State) -> None:
        """Continue from a saved state; scratch values stay."""
        self.rows, self.arcs, self.graph = saved.rows, saved.arcs, saved.graph
        self.shared = saved.shared
        for name, part in self.parts.items():
            part.load(saved.parts.get(name, State()))

    def to(self, device: torch.device) -> State:
        """Move the rows and arcs to a device."""
        for tensors in (self.rows, self.arcs):
            tensors.update({name: value.to(device) for name, value in tensors.items()})
        for part in self.parts.values():
            part.to(device)
        return self

    def walk(self, path: str = "") -> Iterator[tuple[str, State]]:
        """Yield this state and all states inside, each with its path."""
        yield path, self
        for name, part in self.parts.items():
            yield from part.walk(f"{path}{name}/")


# --- as files hold it: tensors and JSON ---
@dataclass(frozen=True)
class Encoded:
    """A state as tensors named `path/owner/name`, where owner is rows, arcs or shared, and values for JSON.

    Attributes:
        tensors: all tensors by name.
        values: everything else: plain values, and what is needed to rebuild graphs and mixing matrices.
        arcs: for each path that has arcs, how many of them lead into each owned node.
    """

    tensors: Tensors
    values: dict[str, Any]
    arcs: dict[str, list[int]]


def owner_of(name: str) -> tuple[str, str]:
    """Return the path and the owner of an encoded tensor.

    >>> owner_of("algorithm/inner/rows/momentum")
    ('algorithm/inner/', 'rows')
    """
    path, owner, _ = ("/" + name).rsplit("/", 2)
    return path[1:] + "/" if path else "", owner


def encode(state: State, nodes: range) -> Encoded:
    """Return the state of the owned nodes as tensors and JSON values."""
    encoded = Encoded({}, {}, {})
    tensors, values = encoded.tensors, encoded.values
    for path, part in state.walk():
        values[f"{path}parts"] = list(part.parts)
        tensors |= {f"{path}rows/{name}": value for name, value in part.rows.items()}
        if part.graph is not None:
            tensors |= {f"{path}arcs/{name}": value for name, value in part.arcs.items()}
            into = np.bincount(part.graph.arcs.receivers, minlength=nodes.stop)
            encoded.arcs[path] = into[nodes.start : nodes.stop].tolist()
        values[f"{path}graph"] = _encoded(part.graph, path, "graph", tensors)
        values |= {f"{path}shared/{name}": _encoded(v, path, name, tensors) for name, v in part.shared.items()}
    return encoded


def decode(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any], nodes: range, path: str = "") -> State:
    """Return the state again, from the tensors of these nodes."""
    state = State(graph=_decoded(values[f"{path}graph"], path, "graph", tensors, nodes))
    owned = {"rows": state.rows, "arcs": state.arcs}
    for key, tensor in tensors.items():
        at, owner = owner_of(key)
        if at == path and owner in owned and "@" not in key:
            owned[owner][key.rpartition("/")[2]] = tensor
    for key, value in values.items():
        if key.startswith(f"{path}shared/") and "/" not in (name := key.removeprefix(f"{path}shared/")):
            state.shared[name] = _decoded(value, path, name, tensors, nodes)
    for name in values[f"{path}parts"]:
        state.parts[name] = decode(tensors, values, nodes, f"{path}{name}/")
    return state


def _encoded(value: Any, path: str, name: str, tensors: Tensors) -> Any:
    """Return a value for JSON; tensors go to `tensors`."""
    at = f"{path}shared/{name}"
    if isinstance(value, torch.Tensor):
        tensors[at] = value
        return {"tensor": True}
    if isinstance(value, np.ndarray):
        tensors[at] = torch.from_numpy(value.copy())
        return {"array": True}
    if isinstance(value, Graph):
        tensors[f"{at}@edges"] = torch.from_numpy(value.edge_array.copy())
        return {"graph": {"n": value.n, "directed": value.directed}}
    if isinstance(value, MixingMatrix):
        if value.whole:
            tensors[f"{at}@weights"] = torch.from_numpy(value.weights.copy())
        else:  # the rows and columns of the owned nodes
            own = slice(value.nodes.start, value.nodes.stop)
            tensors[f"{path}rows/{name}@sent"] = torch.from_numpy(value.sparse[own].toarray())
            tensors[f"{path}rows/{name}@heard"] = torch.from_numpy(value.incoming[own].toarray())
        matrix = {"kind": value.kind, "tolerance": value.tolerance, "whole": value.whole}
        return {"matrix": matrix | _encoded(value.graph, path, name, tensors)}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, path, f"{name}.{i}", tensors) for i, item in enumerate(value)]}
    return value if isinstance(value, str | int | float | None) else {"json": value}


def _decoded(value: Any, path: str, name: str, tensors: Mapping[str, torch.Tensor], nodes: range) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, about),) = value.items()
    at = f"{path}shared/{name}"
    if kind == "json":
        return about
    if kind == "tensor":
        return tensors[at]
    if kind == "array":
        return tensors[at].numpy()
    if kind == "tuple":
        return tuple(_decoded(item, path, f"{name}.{i}", tensors, nodes) for i, item in enumerate(about))
    shape = about["graph"] if kind == "matrix" else about
    graph = Graph(shape["n"], tensors[f"{at}@edges"].numpy(), shape["directed"])
    if kind == "graph":
        return graph
    if about["whole"]:
        return MixingMatrix(graph, tensors[f"{at}@weights"].numpy(), about["kind"], about["tolerance"])
    W = np.zeros((graph.n, graph.n))
    W[nodes.start : nodes.stop] = tensors[f"{path}rows/{name}@sent"].numpy()
    W[:, nodes.start : nodes.stop] = tensors[f"{path}rows/{name}@heard"].numpy().T
    weights = W[graph.pattern.rows, graph.pattern.cols]
    return MixingMatrix(graph, weights, about["kind"], about["tolerance"], nodes)
