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
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mixwise.errors import GraphError
from mixwise.graphs.converters import from_networkx
from mixwise.graphs.graph import Graph
from mixwise.parts import part

if TYPE_CHECKING:
    import networkx

_HEADERS = {("source", "target"), ("from", "to"), ("src", "dst")}


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
        reason = str(error)
    except UnicodeDecodeError:
        reason = "not a text in UTF-8; convert or re-export it"
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); check its permissions"
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
            raise GraphError(
                f"line {number}: {shorten(' '.join(cells), 60)!r} is not two names and perhaps a weight; "
                f"separate them by whitespace or a comma"
            )
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
    return Graph(graph.n, graph.edge_array, graph.directed, labels)


_READERS: Mapping[str, Callable[[bytes], Graph]] = {
    **dict.fromkeys((".txt", ".edgelist", ".edges", ".csv"), _edge_list),
    ".graphml": _graphml,
    ".gml": _gml,
}
