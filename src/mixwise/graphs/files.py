"""Graphs from files: edge lists, GraphML and GML."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mixwise.errors import GraphError
from mixwise.graphs.converters import from_networkx
from mixwise.graphs.graph import Graph
from mixwise.parts import part

if TYPE_CHECKING:
    import networkx

_HEADERS = {("source", "target"), ("from", "to"), ("src", "dst")}


@part("file", "graph", title="graph of a file", form="file:PATH")
def load(path: str | os.PathLike[str]) -> Graph:
    """The graph in a file, read by its suffix; nodes without edges stay, parallel edges become one.

    - `.txt`, `.edgelist`, `.edges`, `.csv`: two node names a line, with whitespace or a comma between them; `#` starts
      a comment, a weight in a third column and a header such as `source,target` are skipped. Nodes are ordered by
      number if all are whole numbers, else as they appear. A line that names one node twice (`7 7`) declares it.
    - `.graphml`, `.gml`: nodes in the order of the file, called by their `label`, else by their id.
    """
    file = Path(os.path.expanduser(path))
    if file.is_dir():
        raise GraphError(f"{file} is a folder; give the path of one graph file")
    if not file.exists():
        raise GraphError(f"there is no file {file}; check the path")
    read = _READERS.get(file.suffix.lower())
    if read is None:
        raise GraphError(f"{file}: cannot read {file.suffix or 'a name without suffix'}; use {', '.join(_READERS)}")
    try:
        content = file.read_bytes()
        if not content.strip():
            raise GraphError("the file is empty; it should describe at least one node")
        return read(content)
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from None
    except UnicodeDecodeError:
        raise GraphError(f"{file}: not a text in UTF-8; convert or re-export it") from None
    except OSError as error:
        raise GraphError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    except Exception as error:  # networkx and the XML parser have many ways to say that a file is broken
        reason = shorten(str(error), 160, placeholder=" …")
        raise GraphError(f"{file}: not a valid {file.suffix[1:]} file ({reason}); mend or re-export it") from None


# --- edge lists ---
def _edge_list(content: bytes) -> Graph:
    lines = enumerate(content.decode("utf-8-sig").splitlines(), start=1)
    rows = [(number, _cells(body)) for number, line in lines if (body := line.split("#", 1)[0].strip())]
    if rows and _is_header(rows[0][1], [cells for _, cells in rows[1:]]):
        rows = rows[1:]
    if not rows:
        raise GraphError("no edges; give two node names per line")
    pairs = [_two_names(number, cells) for number, cells in rows]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    if all(map(_is_number, names)):
        names.sort(key=int)
    number_of = {name: i for i, name in enumerate(names)}
    return Graph(len(names), [(number_of[u], number_of[v]) for u, v in pairs], labels=names)


def _cells(body: str) -> list[str]:
    cells = next(csv.reader([body], skipinitialspace=True)) if "," in body else body.split()
    return [str(int(cell)) if _is_number(cell) else cell for cell in map(str.strip, cells)]  # 07 is node 7


def _two_names(number: int, cells: list[str]) -> tuple[str, str]:
    if len(cells) < 2 or not (cells[0] and cells[1]) or not _is_weight(cells[2:]):
        raise GraphError(
            f"line {number}: {shorten(' '.join(cells), 60)!r} is not two names and perhaps a weight; "
            f"put whitespace or a comma between them"
        )
    return cells[0], cells[1]


def _is_weight(rest: list[str]) -> bool:
    """Whether what follows the two names may be skipped: nothing, a number, or the attributes that networkx writes."""
    if not rest or rest[0].startswith("{"):
        return True
    try:
        float(rest[0] or 0)
    except ValueError:
        return False
    return len(rest) == 1


def _is_header(first: list[str], others: list[list[str]]) -> bool:
    """Whether the first line names columns: usual names of columns, or words above lines of numbers only."""
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
        warnings.simplefilter("ignore")  # it warns of drawing details, which a Graph does not keep
        g = nx.read_graphml(io.BytesIO(content))
    declared = {node.get("id") for node in ElementTree.fromstring(content).findall(".//{*}node")}
    for node in g:  # networkx would silently add them
        if node not in declared:
            raise GraphError(f"an edge names the node {node!r}, which the file does not declare; add the node")
    return _with_labels(g)


def _gml(content: bytes) -> Graph:
    import networkx as nx

    # Many files have parallel edges without saying so, which networkx refuses; as a multigraph it reads every file.
    text = re.sub(r"^(\s*graph\s*\[)", r"\1 multigraph 1 ", content.decode("utf-8-sig"), count=1, flags=re.MULTILINE)
    return _with_labels(nx.parse_gml(text, label="id"))


def _with_labels(g: networkx.Graph[Any]) -> Graph:
    if not len(g):
        raise GraphError("the file has no nodes; it should describe at least one")
    graph = from_networkx(g)
    labels = [str(node if data.get("label") in (None, "") else data["label"]) for node, data in g.nodes(data=True)]
    return Graph(graph.n, graph.edge_array, graph.directed, labels)


_READERS: Mapping[str, Callable[[bytes], Graph]] = MappingProxyType(
    {
        ".txt": _edge_list,
        ".edgelist": _edge_list,
        ".edges": _edge_list,
        ".csv": _edge_list,
        ".graphml": _graphml,
        ".gml": _gml,
    }
)
