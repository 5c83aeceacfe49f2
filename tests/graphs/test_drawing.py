"""Pictures of graphs: positions of nodes, figures in notebooks, and Braille dots in the terminal."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from builders import svg_texts
from mixwise.graphs import Graph, complete, directed_exponential, exponential, grid, ring, star, torus
from mixwise.graphs.drawing import is_drawable, layout, terminal_picture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("graph", [ring(16), ring(7).permuted([3, 0, 5, 1, 6, 2, 4]), grid(3, 4), torus(4, 4), star(9)])
def test_nodes_are_drawn_inside_the_square_and_apart(graph):
    spots = layout(graph)
    assert spots.min() >= 0
    assert spots.max() <= 1
    gaps = np.linalg.norm(spots[:, None] - spots[None], axis=2) + 9 * np.eye(graph.n)
    assert gaps.min() > 0.08


@pytest.mark.parametrize("graph", [star(9), grid(3, 4), star(4)])
def test_nodes_are_apart_even_if_eigenvectors_put_them_on_one_spot(graph, monkeypatch):
    """Eigenvectors of equal eigenvalues differ from processor to processor."""
    monkeypatch.setattr("networkx.spectral_layout", lambda g: {i: np.zeros(2) for i in g})
    test_nodes_are_drawn_inside_the_square_and_apart(graph)


def test_a_ring_and_a_graph_around_it_lie_on_a_circle():
    graph = ring(8).permuted([3, 0, 5, 1, 7, 6, 2, 4])
    spots = layout(graph)
    lengths = [np.linalg.norm(spots[i] - spots[j]) for i, j in graph.edges]
    assert lengths == pytest.approx([np.sin(np.pi / 8)] * 8)  # the sides of an octagon around radius 1/2
    assert layout(exponential(8)) == pytest.approx(layout(ring(8)))


def test_graphs_that_are_too_large_to_read_are_not_drawn():
    assert is_drawable(ring(300))
    assert not is_drawable(ring(1000))
    assert not is_drawable(complete(100))
    assert ring(5000)._repr_svg_() is None


@pytest.mark.parametrize("graph", [ring(12), Graph(1, []), Graph(3, []), Graph(2, [(0, 1)])])
def test_a_picture_shows_every_node(graph):
    picture = terminal_picture(graph)
    assert all(str(node) in picture for node in range(graph.n))
    assert max(map(len, picture.splitlines())) <= 44


@pytest.mark.parametrize("graph", [ring(8), directed_exponential(6), Graph(1, [])])
def test_a_graph_is_a_picture_of_all_its_nodes_and_edges(graph):
    picture = graph._repr_svg_()
    assert svg_texts(picture) == [str(node) for node in range(graph.n)]
    assert repr(graph) in picture
    groups = [(group.get("id", ""), group) for group in ET.fromstring(picture).iter(f"{SVG}g")]
    lines = [path for name, group in groups if "LineCollection" in name for path in group.findall(f"{SVG}path")]
    if graph.directed:
        assert sum(name.startswith("patch_") for name, _ in groups) >= len(graph.edges)  # arrows
    else:
        assert len(lines) == len(graph.edges)


def test_short_labels_of_nodes_are_shown_as_text():
    assert svg_texts(Graph(2, [(0, 1)], labels=["<&>", "$b$"])._repr_svg_()) == ["<&>", "$b$"]
    assert svg_texts(Graph(2, [(0, 1)], labels=["</svg>", "b"])._repr_svg_()) == ["0", "1"]  # too long for a node
