"""Pictures of graphs and mixing matrices: node positions, matplotlib figures, and Braille dots for the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Positions = npt.NDArray[np.float64]  # (n, 2) in the unit square; y points down, as on a screen

_MAX_NODES, _MAX_EDGES = 300, 4000  # a larger graph is unreadable
_MAX_NUMBERED = 64  # nodes; the numbers of more would overlap
MAX_MATRIX = 300  # nodes; the cells of a larger matrix are too small to see
_MAX_WRITTEN = 20  # nodes; up to here the weights are written into the cells
_MAX_HOP_DISTANCES = 120  # nodes; the layout by hop distances takes too long for more
_STRETCH = 1.7  # how much the shorter side of given positions may be stretched
_DENSE = 3.2  # edges per node above which only a circle keeps nodes and edges apart
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bit of each dot in a 4 × 2 Braille cell
_FORMATS = (".png", ".svg", ".pdf")


def is_drawable(graph: Graph) -> bool:
    """Whether the graph is small enough for a readable picture."""
    return graph.n <= _MAX_NODES and len(graph.edge_array) <= _MAX_EDGES


# --- layout ---
def layout(graph: Graph) -> Positions:
    """Positions of the nodes, used by every picture of a graph.

    A graph with positions of its own keeps them: grids, tori, hypercubes, files with coordinates. Rings, chains, dense
    graphs and graphs that contain the ring 0, 1, 2, … lie on a circle, rings and chains in the order of their edges. In
    other graphs the distance between two nodes follows the number of hops between them.
    """
    if graph.positions is not None:
        low, high = graph.positions.min(axis=0), graph.positions.max(axis=0)
        size = np.maximum(high - low, (high - low).max() / _STRETCH)  # the short side of a map uses more of the room
        fitted: Positions = (graph.positions - (low + high) / 2) / np.where(size > 0, size, 1.0) + 0.5
        return fitted
    order = _walk(graph)
    around = sum(abs(i - j) in (1, graph.n - 1) for i, j in graph.edges)
    if order is None and (around >= graph.n or len(graph.edge_array) > _DENSE * graph.n):
        order = list(range(graph.n))
    if order is None:
        return _spread_out(graph)
    angle = np.empty(graph.n)
    angle[order] = 2 * np.pi * np.arange(graph.n) / graph.n
    radius = 0.5 if graph.n > 1 else 0.0
    return np.stack([0.5 + radius * np.sin(angle), 0.5 - radius * np.cos(angle)], axis=1)


def _walk(graph: Graph) -> list[int] | None:
    """The nodes of a ring or a chain in the order of its edges; None for any other graph."""
    from scipy.sparse import csgraph  # imports all of scipy.linalg

    both_ways = Graph(graph.n, graph.edge_array)
    if max(both_ways.degrees) > 2:
        return None
    end = next((i for i, degree in enumerate(both_ways.degrees) if degree < 2), 0)
    order: list[int] = csgraph.depth_first_order(both_ways.adjacency, end, return_predecessors=False).tolist()
    return order if len(order) == graph.n else None


def _spread_out(graph: Graph) -> Positions:
    import networkx as nx  # only pictures need it

    g: nx.Graph[int] = nx.empty_graph(graph.n)
    g.add_edges_from(graph.edges)
    if graph.n <= _MAX_HOP_DISTANCES and nx.is_connected(g):
        # A small circle is added: eigenvectors may put several nodes on one spot, such as the leaves of a star, and
        # the layout would then divide by a distance of 0.
        places = nx.circular_layout(g)
        if graph.n > 3:
            spectral = nx.spectral_layout(g)
            places = {i: spectral[i] + 0.1 * places[i] for i in g}
        places = nx.kamada_kawai_layout(g, pos=places)
    else:
        places = nx.spring_layout(g, seed=0, iterations=100)
    spots = np.array([places[i] for i in range(graph.n)], dtype=np.float64)
    spots -= spots.mean(axis=0)
    spots = spots @ np.linalg.svd(spots, full_matrices=False)[2].T  # the longest direction becomes horizontal
    low, high = spots.min(axis=0), spots.max(axis=0)
    return np.where(high > low, (spots - low) / np.where(high > low, high - low, 1.0), 0.5)


# --- figures ---
def graph_figure(graph: Graph) -> Figure:
    """The graph as a matplotlib figure; nodes show their labels if these are short, otherwise their numbers."""
    from matplotlib.collections import LineCollection  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    spots, numbered = layout(graph), graph.n <= _MAX_NUMBERED
    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.subplots()
    if graph.directed:
        gap = 9 if numbered else 2.5  # points: the radius of a node
        arrow = {"arrowstyle": "-|>", "color": "0.6", "shrinkA": gap, "shrinkB": gap}
        for i, j in graph.edges:
            panel.annotate("", spots[j], spots[i], arrowprops=arrow, zorder=1)
    else:
        panel.add_collection(LineCollection(spots[graph.edge_array].tolist(), colors="0.6", linewidths=1, zorder=1))
    panel.scatter(spots[:, 0], spots[:, 1], s=260 if numbered else 20, color="#0072B2", zorder=2)
    names = graph.labels if graph.labels and max(map(len, graph.labels)) <= 3 else range(graph.n)
    for (x, y), name in zip(spots, names, strict=True) if numbered else []:
        panel.text(x, y, str(name), ha="center", va="center", color="white", fontsize=8, zorder=3, parse_math=False)
    panel.set(xlim=(-0.08, 1.08), ylim=(1.08, -0.08), aspect="equal")
    panel.axis("off")
    return figure


def matrix_figure(W: npt.NDArray[np.float64]) -> Figure:
    """W (n, n) as a heat map: row i is what node i sends, column j what node j receives; darker is larger."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.4), layout="constrained")
    panel = figure.subplots()
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # small weights stay visible
    figure.colorbar(panel.imshow(W, cmap="Blues", norm=norm), shrink=0.8)
    panel.set(xlabel="receiver", ylabel="sender")
    panel.locator_params(integer=True)
    for i, j in np.argwhere(W >= 0.005) if len(W) <= _MAX_WRITTEN else ():
        color, text = "white" if W[i, j] > 0.4 else "black", f"{W[i, j]:.2f}".removeprefix("0")
        panel.text(j, i, text, ha="center", va="center", fontsize=7, color=color)
    return figure


def save_picture(graph: Graph, path: Path) -> None:
    """Write the graph to a PNG, SVG or PDF file."""
    if path.suffix.lower() not in _FORMATS:
        raise GraphError(f"a picture is saved as {', '.join(_FORMATS)}, not as {path.suffix or path.name!r}")
    graph_figure(graph).savefig(path, dpi=160)


def svg(figure: Figure, title: str) -> str:
    """A figure as SVG text for notebooks; `title` describes it to screen readers."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "mixwise", "svg.fonttype": "none"}):  # the same bits every time; text stays text
        figure.savefig(text, format="svg", metadata={"Title": title, "Date": None})
    return text.getvalue()


# --- the terminal ---
def terminal_picture(graph: Graph, width: int = 44, height: int = 18) -> str:
    """The graph in Braille dots, with node numbers on top."""
    dots = np.zeros((height * 4, width * 2), dtype=bool)
    margin = 3  # room for node numbers
    spots = layout(graph) * ((width - 2 * margin) * 2 - 1, (height - 2) * 4 - 1) + (margin * 2, 4)
    for i, j in graph.edges:
        length = int(np.abs(spots[i] - spots[j]).max()) + 1
        for x, y in np.linspace(spots[i], spots[j], 2 * length):
            dots[int(y), int(x)] = True
    cells = (dots.reshape(height, 4, width, 2) * np.array(_DOTS)[:, None]).sum(axis=(1, 3))
    text = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells.tolist()]
    for node, (x, y) in enumerate(spots):
        name = str(node)
        start = min(int(x) // 2 - len(name) // 2, width - len(name))
        text[int(y) // 4][start : start + len(name)] = name
    return "\n".join("".join(row).rstrip() for row in text)
