"""Pictures of a graph: in the terminal, with Braille dots, and as an image file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixwise.errors import GraphError
from mixwise.graphs import Graph
from mixwise.graphs.drawing import layout
from mixwise.report.figures import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bit of each dot in a 4 × 2 Braille cell
_FORMATS = (".png", ".svg", ".pdf")


def terminal_picture(graph: Graph, width: int = 44, height: int = 18) -> str:
    """The graph in Braille dots, node numbers on top."""
    dots = np.zeros((height * 4, width * 2), dtype=bool)
    margin = 3  # room for node numbers
    spots = layout(graph) * ((width - 2 * margin) * 2 - 1, (height - 2) * 4 - 1) + (margin * 2, 4)
    for i, j in graph.edges:
        length = int(np.abs(spots[i] - spots[j]).max()) + 1
        for x, y in np.linspace(spots[i], spots[j], 2 * length):
            dots[int(y), int(x)] = True
    text = [
        [
            chr(0x2800 + sum(_DOTS[r][c] for r in range(4) for c in range(2) if dots[4 * row + r, 2 * col + c]))
            for col in range(width)
        ]
        for row in range(height)
    ]
    for node, (x, y) in enumerate(spots):
        name = str(node)
        start = min(int(x) // 2 - len(name) // 2, width - len(name))
        text[int(y) // 4][start : start + len(name)] = name
    return "\n".join("".join(row).replace("\u2800", " ").rstrip() for row in text)


def save_picture(graph: Graph, path: Path) -> None:
    """The graph as a PNG, SVG or PDF file."""
    if path.suffix.lower() not in _FORMATS:
        raise GraphError(f"a picture is saved as {', '.join(_FORMATS)}, not as {path.suffix or path.name!r}")
    try:
        graph_figure(graph).savefig(path, dpi=160)
    except OSError as error:
        raise GraphError(f"the picture {path} cannot be written: {error.strerror}") from None


def graph_figure(graph: Graph) -> Figure:
    """The graph as a matplotlib figure."""
    from matplotlib.figure import Figure  # slow to import

    spots = layout(graph)
    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.subplots()
    for i, j in graph.edges:
        panel.plot(spots[[i, j], 0], spots[[i, j], 1], color="0.6", linewidth=1, zorder=1)
    panel.scatter(spots[:, 0], spots[:, 1], s=260 if graph.n <= 64 else 20, color=COLORS[0], zorder=2)
    if graph.n <= 64:
        for node, (x, y) in enumerate(spots):
            panel.text(x, y, str(node), ha="center", va="center", color="white", fontsize=8, zorder=3)
    panel.set(xlim=(-0.08, 1.08), ylim=(-0.08, 1.08), aspect="equal")
    panel.axis("off")
    return figure
