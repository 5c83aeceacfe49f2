"""A graph as a picture: where its nodes are drawn, and an SVG for notebooks and pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from mixwise.graphs.graph import Graph

Positions = npt.NDArray[np.float64]  # (n, 2) in the unit square

DRAWN = 200  # more nodes than this are a blot, and slow to place


def layout(graph: Graph) -> Positions:
    """Where to draw the nodes: on a circle if they are connected one after the other, else by springs."""
    import networkx as nx  # only pictures need it

    g: nx.Graph[int] = nx.Graph()
    g.add_nodes_from(range(graph.n))
    g.add_edges_from(graph.edges)
    on_circle = sum((j - i) in (1, graph.n - 1) for i, j in graph.edges) >= graph.n - 1 or graph.n <= 3
    places = nx.circular_layout(g) if on_circle else nx.spring_layout(g, seed=0, iterations=100)
    array = np.array([places[i] for i in range(graph.n)], dtype=np.float64).reshape(graph.n, 2)
    low, high = array.min(axis=0), array.max(axis=0)
    spread = np.where(high > low, high - low, 1.0)
    return np.where(high > low, (array - low) / spread, 0.5)


def graph_svg(
    graph: Graph,
    size: int = 320,
    *,
    colors: Sequence[str] | None = None,
    widths: Sequence[float] | None = None,
    title: str | None = None,
) -> str:
    """The graph as a self-contained SVG.

    Args:
        graph: of at most some hundred nodes.
        size: width and height in pixels.
        colors: one fill per node.
        widths: one line width per edge, in the order of `graph.edges`; an edge of width 0 is dotted.
        title: what a reader that does not see the picture is told.
    """
    radius = max(3.0, min(13.0, size / (2.2 * graph.n**0.5 + 10)))
    spots = radius + 3 + layout(graph) * (size - 2 * radius - 6)
    told = title or f"{graph!r}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{size}" viewBox="0 0 {size} {size}" '
        f'role="img" aria-label="{escape(told)}" font-family="sans-serif" font-size="{radius * 0.9:.1f}">',
        f"<title>{escape(told)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8Z" fill="#888"/></marker></defs>'
        if graph.directed
        else "",
    ]
    for e, (i, j) in enumerate(graph.edges):
        start, stop = _between(spots[i], spots[j], radius if graph.directed else 0.0)
        width = 1.5 if widths is None else widths[e]
        style = f'stroke-width="{width:.2f}"' if width else 'stroke-width="1" stroke-dasharray="1 4"'
        marker = ' marker-end="url(#arrow)"' if graph.directed else ""
        parts.append(
            f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{stop[0]:.1f}" y2="{stop[1]:.1f}" '
            f'stroke="#888" {style}{marker}/>'
        )
    for node, (x, y) in enumerate(spots):
        name = str(node) if graph.labels is None else f"{node}: {graph.labels[node]}"
        fill = "#0072B2" if colors is None else colors[node]
        text = f'<text x="{x:.1f}" y="{y:.1f}" dy=".35em" fill="white" text-anchor="middle">{node}</text>'
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{escape(fill)}"/>'
        parts.append(f"<g><title>{escape(name)}</title>{circle}{text if radius >= 6 else ''}</g>")
    return "".join([*parts, "</svg>"])


def _between(start: Positions, stop: Positions, gap: float) -> tuple[Positions, Positions]:
    """The line from one node to another, ending where the circles of that radius do."""
    way = stop - start
    length = float(np.hypot(*way))
    cut = way * (gap / length) if length > 2 * gap else 0 * way
    return start + cut, stop - cut
