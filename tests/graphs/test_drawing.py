"""Pictures of graphs: positions of nodes, figures in notebooks, and Braille dots in the terminal."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from builders import svg_texts
from mixwise.graphs import Graph, complete, directed_exponential, exponential, grid, hypercube, load, ring, star, torus
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


PLACED = torus(3, 4).permuted([3, 7, 0, 11, 1, 6, 9, 2, 10, 4, 8, 5])


@pytest.mark.parametrize("graph", [grid(3, 4), torus(3, 4), PLACED])
def test_grids_and_tori_lie_in_rows_and_columns(graph):
    """Wherever its nodes are placed, a grid has 4 columns and 3 rows, and 17 edges of one cell."""
    spots = layout(graph)
    assert [len(np.unique(spots[:, axis].round(9))) for axis in (0, 1)] == [4, 3]
    steps = np.abs(spots[graph.edge_array[:, 0]] - spots[graph.edge_array[:, 1]]) / [1 / 3, np.ptp(spots[:, 1]) / 2]
    assert sum(step.sum() == pytest.approx(1) for step in steps) == 17


@pytest.mark.parametrize("dimension", [3, 4, 5, 6])
def test_a_hypercube_is_a_shadow_of_a_cube(dimension):
    """Edges of one dimension are parallel and equally long, and no two corners coincide."""
    graph = hypercube(dimension)
    spots = graph.positions
    for k in range(dimension):
        sides = np.array([spots[i | 1 << k] - spots[i] for i in range(graph.n) if not i >> k & 1])
        assert sides == pytest.approx(np.broadcast_to(sides[0], sides.shape))
    gaps = np.linalg.norm(spots[:, None] - spots[None], axis=2) + 9 * np.eye(graph.n)
    assert gaps.min() > 0.04 * np.ptp(spots)


def test_a_file_with_coordinates_is_drawn_as_a_map(tmp_path):
    nodes = {"a": (0, 50), "b": (10, 50), "c": (10, 40), "lost": None}
    lines = [
        f'node [ id {i} label "{name}" ' + (f"Longitude {at[0]} Latitude {at[1]} ]" if at else "]")
        for i, (name, at) in enumerate(nodes.items())
    ]
    text = "\n".join(["graph [", *lines, *(f"edge [ source {i} target {i + 1} ]" for i in range(3)), "]"])
    (tmp_path / "map.gml").write_text(text)
    graph = load(tmp_path / "map.gml")
    spots = layout(graph)
    assert spots[:2, 1] == pytest.approx([0, 0])  # the north is up
    assert spots[1:3, 0] == pytest.approx([1, 1], abs=0.03)
    assert 0 < np.linalg.norm(spots[3] - spots[2]) < 0.1  # a node without coordinates is beside its neighbor
    moved = graph.permuted([1, 2, 3, 0])
    assert layout(moved)[1] == pytest.approx(spots[0])
    assert graph.subgraph([2, 1]).positions.tolist() == graph.positions[[2, 1]].tolist()
    assert Graph(4, graph.edges) == graph  # positions are not part of the value


ABILENE = Path(__file__).parents[3] / "shared" / "data" / "topologies" / "Abilene.graphml"


@pytest.mark.skipif(not ABILENE.exists(), reason="the Internet Topology Zoo is not on this machine")
def test_abilene_is_drawn_as_a_map_of_the_united_states():
    graph = load(ABILENE)
    spots = dict(zip(graph.labels, layout(graph), strict=True))
    assert spots["Seattle"][0] < spots["Denver"][0] < spots["Chicago"][0] < spots["New York"][0]
    assert spots["Seattle"][1] < spots["Denver"][1] < spots["Houston"][1]


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
