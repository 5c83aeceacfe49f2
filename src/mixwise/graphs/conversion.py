"""Graphs from other forms: edge lists, networkx graphs, adjacency matrices, and files."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Edges, Graph
from mixwise.parts import part
from mixwise.storage import contents

if TYPE_CHECKING:
    import networkx
    import torch

_MAX_BYTES = 1 << 28
_HEADERS = {("source", "target"), ("from", "to"), ("src", "dst")}


def from_edges(edges: Edges, n: int | None = None, directed: bool = False) -> Graph:
    """The graph with these edges; n defaults to the largest node number plus one.

    >>> from_edges([(0, 1), (1, 2)]) == Graph(3, [(0, 1), (1, 2)])
    True
    """
    listed = edges if isinstance(edges, np.ndarray) else list(edges)
    if n is None:
        if len(listed) == 0:
            raise GraphError("no edges and no n; pass the number of nodes: from_edges([], n=…)")
        try:
            n = 1 + max(0, int(np.max(listed)))
        except (ValueError, TypeError):
            n = 1  # not pairs of numbers, which Graph reports
    return Graph(n, listed, directed)


def from_networkx(g: networkx.Graph[Any]) -> Graph:
    """A networkx graph, directed or not, with its nodes in its order and `str(node)` as labels.

    Parallel edges are merged and loops are dropped.
    """
    if not hasattr(g, "is_directed"):
        raise GraphError(f"expected a networkx graph, got {type(g).__name__}; for pairs, use from_edges(edges)")
    number = {node: i for i, node in enumerate(g)}
    edges = [(number[u], number[v]) for u, v in g.edges()]
    return Graph(len(number), edges, directed=g.is_directed(), labels=[str(node) for node in g])


def from_adjacency(
    A: npt.ArrayLike | sparse.sparray | sparse.spmatrix | torch.Tensor, directed: bool | None = None
) -> Graph:
    """The graph of the non-zero entries of A (n, n), where A[i, j] ≠ 0 means that i may send to j.

    Args:
        A: a NumPy, SciPy or torch matrix, dense or sparse; the diagonal is ignored.
        directed: defaults to False if the non-zero pattern is symmetric, else to True.
    """
    C = _as_sparse(A)
    positions = np.stack([C.row, C.col], axis=1)
    for e in np.flatnonzero(~np.isfinite(C.data)):
        i, j = positions[e]
        raise GraphError(f"A[{i}, {j}] = {C.data[e]}; entries are finite numbers, 0 where there is no edge")
    arcs = Graph(C.shape[0], positions[C.data != 0], directed=True)
    one_way = np.stack((arcs.adjacency - arcs.adjacency.T).nonzero(), axis=1)
    if directed or (directed is None and len(one_way)):
        return arcs
    for i, j in one_way:
        raise GraphError(f"only one of A[{i}, {j}] and A[{j}, {i}] is zero; pass directed=True, or A + A.T")
    return Graph(arcs.n, arcs.edge_array)


def _as_sparse(A: Any) -> sparse.coo_array:
    """A square matrix in COO form, without repeated entries."""
    if hasattr(A, "detach"):  # a torch tensor, dense or sparse
        T = A.detach().cpu().to_sparse().coalesce()
        A = sparse.coo_array((T.values().double().numpy(), tuple(T.indices().numpy())), shape=tuple(T.shape))
    try:
        A = A if sparse.issparse(A) else np.asarray(A, dtype=np.float64)
    except (ValueError, TypeError):
        raise GraphError("A is not an array of numbers; give n rows of n numbers, 0 where there is no edge") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise GraphError(f"an adjacency matrix is square, got an array of shape {A.shape}; for pairs, use from_edges")
    C = sparse.coo_array(A, copy=True)
    C.sum_duplicates()
    return C


@part("file", "graph", title="graph of a file")
def load(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from a file whose format is given by its suffix.

    Isolated nodes are kept and parallel edges are merged.

    - `.txt`, `.edgelist`, `.edges`, `.csv`: two node names per line, separated by whitespace or a comma. `#` starts a
      comment; a weight in a third column and a header such as `source,target` are skipped. Nodes are sorted by number
      if all names are whole numbers, else ordered as they appear. A line that repeats a node (`7 7`) declares it.
    - `.graphml`, `.gml`: nodes in the order of the file, named by their `label`, or else by their id.
    """
    file = Path(os.path.expanduser(path))
    read = _READERS.get(file.suffix.lower())
    try:
        content = contents(file, _MAX_BYTES)
        if read is None:
            raise GraphError(f"cannot read {file.suffix or 'a name without suffix'}; use {', '.join(_READERS)}")
        if not content.strip():
            raise GraphError("the file is empty; it should describe at least one node")
        return read(content)
    except GraphError as error:
        reason = str(error)
    except UnicodeDecodeError:
        reason = "not a text in UTF-8; convert or re-export it"
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give the path of a graph file"
    except Exception as error:  # networkx and the XML parser raise many kinds of errors for a broken file
        shown = shorten(str(error), 160, placeholder=" …")
        reason = f"not a valid {file.suffix[1:]} file ({shown}); fix or re-export it"
    raise GraphError(f"{file}: {reason}")


# --- edge lists ---
def _edge_list(content: bytes) -> Graph:
    lines = enumerate(content.decode("utf-8-sig").splitlines(), start=1)
    rows = [(number, _cells(body)) for number, line in lines if (body := line.split("#", 1)[0].strip())]
    if rows and _is_header(rows[0][1], [cells for _, cells in rows[1:]]):
        rows = rows[1:]
    if not rows:
        raise GraphError("no edges; give two node names per line")
    for number, cells in rows:
        if len(cells) < 2 or not (cells[0] and cells[1]) or not _is_weight(cells[2:]):
            shown = shorten(" ".join(cells), 60)
            raise GraphError(f"line {number}: {shown!r} is not two names and perhaps a weight, e.g. 3 7 or 3,7,0.5")
    names = list(dict.fromkeys(name for _, cells in rows for name in cells[:2]))
    if all(map(_is_number, names)):
        names.sort(key=int)
    number_of = {name: i for i, name in enumerate(names)}
    return Graph(len(names), [(number_of[u], number_of[v]) for _, (u, v, *_) in rows], labels=names)


def _cells(body: str) -> list[str]:
    """The cells of a line, with numbers in their usual form: 07 is node 7."""
    cells = next(csv.reader([body], skipinitialspace=True)) if "," in body else body.split()
    return [str(int(cell)) if _is_number(cell) else cell for cell in map(str.strip, cells)]


def _is_weight(rest: list[str]) -> bool:
    """Whether the cells after the two names can be skipped: none, a number, or the attributes that networkx writes."""
    if not rest or rest[0].startswith("{"):
        return True
    try:
        float(rest[0] or 0)
    except ValueError:
        return False
    return len(rest) == 1


def _is_header(first: list[str], others: list[list[str]]) -> bool:
    """Whether the first line names columns: by usual column names, or by words above lines of numbers only."""
    usual = tuple(cell.lower() for cell in first[:2]) in _HEADERS
    words = not any(map(_is_number, first[:2]))
    numbers = all(_is_number(cell) for cells in others for cell in cells[:2])
    return usual or (words and numbers and len(first) > 1 and len(others) > 0)


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", name) is not None


# --- through networkx ---
def _graphml(content: bytes) -> Graph:
    import networkx as nx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about drawing attributes, which a Graph does not keep
        g = nx.read_graphml(io.BytesIO(content))
    declared = {node.get("id") for node in ElementTree.fromstring(content).findall(".//{*}node")}
    for node in g:
        if node not in declared:  # networkx adds it silently
            raise GraphError(f"an edge names the node {node!r}, which the file does not declare; add the node")
    return _with_labels(g)


def _gml(content: bytes) -> Graph:
    import networkx as nx

    # networkx rejects parallel edges in files that do not declare a multigraph, and many do not.
    text = re.sub(r"^(\s*graph\s*\[)", r"\1 multigraph 1 ", content.decode("utf-8-sig"), count=1, flags=re.MULTILINE)
    return _with_labels(nx.parse_gml(text, label="id"))


def _with_labels(g: networkx.Graph[Any]) -> Graph:
    if not len(g):
        raise GraphError("the file has no nodes; it should describe at least one")
    graph = from_networkx(g)
    labels = [str(node if data.get("label") in (None, "") else data["label"]) for node, data in g.nodes(data=True)]
    return Graph(graph.n, graph.edge_array, graph.directed, labels, _positions(g))


def _positions(g: networkx.Graph[Any]) -> npt.NDArray[np.float64] | None:
    """The coordinates in a file, y downwards, if half of the nodes have them; the others are put among neighbors."""
    spots = {node: spot for node, data in g.nodes(data=True) if (spot := _spot(data)) is not None}
    if 2 * len(spots) < len(g):
        return None
    for node in g:
        if node not in spots:
            around = [spots[other] for other in g.neighbors(node) if other in spots] or list(spots.values())
            spots[node] = np.mean(around, axis=0)
    placed = np.array([spots[node] for node in g])
    step = 0.02 * (np.ptp(placed, axis=0).max() or 1.0)
    for i, spot in enumerate(placed):  # several nodes of one city
        while (np.abs(placed[:i] - spot).max(axis=1) < step / 4).any():
            spot += step * np.array([1.0, 0.4])
    return placed


def _spot(data: Mapping[str, Any]) -> npt.NDArray[np.float64] | None:
    lower = {str(name).lower(): value for name, value in data.items()}
    for x, y, sign in (("longitude", "latitude", -1), ("x", "y", 1)):
        with suppress(TypeError, ValueError, KeyError):
            spot = np.array([float(lower[x]), sign * float(lower[y])])
            if np.isfinite(spot).all():
                return spot
    return None


_READERS: Mapping[str, Callable[[bytes], Graph]] = {
    **dict.fromkeys((".txt", ".edgelist", ".edges", ".csv"), _edge_list),
    ".graphml": _graphml,
    ".gml": _gml,
}
