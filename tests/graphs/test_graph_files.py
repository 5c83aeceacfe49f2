"""Files as people have them: duplicate names, parallel edges, isolated nodes, and broken in every way."""

from pathlib import Path

import networkx as nx
import pytest

from builders import cases
from mixwise.errors import GraphError
from mixwise.graphs import Graph, chain, load

ZOO = Path(__file__).parents[3] / "shared" / "data" / "topologies"
ZOO_NAMES = ["Abilene", "Chinanet", "Cogentco", "Dfn", "Geant2012", "Internode", "Kdl", "Nsfnet"]

GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="label" attr.type="string" for="node" id="d0" />
  <graph edgedefault="{direction}">
    <node id="z"><data key="d0">Zürich</data></node> <node id="b"><data key="d0">Bern</data></node>
    <node id="b2"><data key="d0">Bern</data></node> <node id="lonely"/>
    <edge source="b" target="z"/> <edge source="b" target="z"/>
    <edge source="b2" target="b2"/> <edge source="b2" target="b"/>
  </graph>
</graphml>
"""

GML = """Creator "by hand"
graph [
  directed {directed}
  node [ id 10 label "Zürich" ] node [ id 5 label "Bern" ] node [ id 6 label "Bern" ] node [ id 7 ]
  edge [ source 5 target 10 ] edge [ source 5 target 10 ] edge [ source 6 target 6 ] edge [ source 6 target 5 ]
]
"""


def written(name: str, directed: bool = False) -> str:
    """The graph above in the format that the name tells."""
    direction = "directed" if directed else "undirected"
    return GML.format(directed=int(directed)) if name == "g.gml" else GRAPHML.format(direction=direction)


@pytest.fixture
def read(tmp_path):
    """Writes a file and loads it."""

    def write_and_load(name: str, content: str | bytes) -> Graph:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path)

    return write_and_load


# --- edge lists ---
@pytest.mark.parametrize("suffix", ["txt", "edgelist", "edges", "csv", "TXT"])
@pytest.mark.parametrize("separator", [" ", "\t", ",", ", ", " , "])
def test_numbers_with_any_separator_in_any_suffix(read, suffix, separator):
    assert read(f"g.{suffix}", f"0{separator}1\n1{separator}2\n") == chain(3)


def test_comments_blank_lines_weights_repeats_and_loops(read):
    text = "# a graph\n\n2 1 0.5  # heavy\r\n1 0 -3e2\n0 1\n1 1\n3 3\n"
    graph = read("g.txt", text)
    assert graph == Graph(4, [(0, 1), (1, 2)])  # 3 has no edges, but a line of its own
    assert graph.labels == ("0", "1", "2", "3")


def test_numbers_are_ordered_as_numbers_and_gaps_are_no_nodes(read):
    graph = read("g.txt", "10 2\n2 1\n01 10\n")
    assert graph.labels == ("1", "2", "10")
    assert graph.edges == ((0, 1), (0, 2), (1, 2))


def test_names_are_ordered_as_they_appear(read):
    graph = read("g.csv", '"Zürich, main",New York\nNew York,Bern,3\nBern,7\n')
    assert graph.labels == ("Zürich, main", "New York", "Bern", "7")
    assert graph == chain(4)
    assert read("g.csv", "source,target\nBern,Basel\n").labels == ("Bern", "Basel")


@pytest.mark.parametrize("header", ["source,target", "Source,Target,Weight", "from to", "u,v,w", "first node,second"])
def test_a_header_is_no_edge(read, header):
    assert read("g.csv", f"{header}\n0,1\n1,2\n") == chain(3)


def test_what_networkx_and_a_spreadsheet_write(read, tmp_path):
    weighted = nx.path_graph(3)
    nx.write_edgelist(weighted, tmp_path / "a.edgelist")
    nx.set_edge_attributes(weighted, 2.5, "weight")
    nx.write_edgelist(weighted, tmp_path / "b.edgelist")
    nx.write_weighted_edgelist(weighted, tmp_path / "c.edgelist")
    assert [load(tmp_path / f"{name}.edgelist") for name in "abc"] == [chain(3)] * 3
    assert read("d.csv", b"\xef\xbb\xbf0,1\r\n1,2\r\n") == chain(3)  # a byte order mark
    assert load(str(tmp_path / "a.edgelist")) == chain(3)


@pytest.mark.parametrize("line", ["7", "7,", ",7", "7;8", "1 2 3 4", "New York Boston", "1,2,x", "1 2 3 {}"])
def test_a_broken_line_is_named(read, line):
    with pytest.raises(GraphError, match=r"g\.txt: line 3: .* is not two names and perhaps a weight, e.g. 3 7"):
        read("g.txt", f"0 1\n# fine\n{line}\n")
    with pytest.raises(GraphError, match=r"g\.csv: line 1: '0;1' is not two names"):  # no header either
        read("g.csv", "0;1\n1,2\n2,3\n")


# --- GraphML and GML ---
@pytest.mark.parametrize("name", ["g.graphml", "g.gml"])
def test_duplicate_labels_parallel_edges_loops_and_isolated_nodes(read, name):
    graph = read(name, written(name))
    assert graph == Graph(4, [(0, 1), (1, 2)])
    assert graph.labels == ("Zürich", "Bern", "Bern", "lonely" if name == "g.graphml" else "7")
    assert read(name, written(name, directed=True)) == Graph(4, [(1, 0), (2, 1)], directed=True)


@pytest.mark.parametrize("multigraph", ["", "multigraph 0", "multigraph 1"])
def test_gml_may_or_may_not_declare_a_multigraph(read, multigraph):
    assert read("g.gml", GML.format(directed=f"0 {multigraph}")) == Graph(4, [(0, 1), (1, 2)])


def test_what_networkx_writes_is_read_back(tmp_path):
    g = nx.davis_southern_women_graph()
    g.graph.clear()  # GraphML has no lists
    nx.write_graphml(g, tmp_path / "g.graphml")
    nx.write_gml(g, tmp_path / "g.gml")
    for file in ("g.graphml", "g.gml"):
        graph = load(tmp_path / file)
        assert (graph.n, len(graph.edges)) == (32, 89)
        assert graph.labels == tuple(g)


def test_graphml_without_namespace_and_with_drawing_details(read):
    plain = '<graphml><graph><node id="a"/><node id="b"/><edge source="a" target="b"/></graph></graphml>'
    assert read("plain.graphml", plain) == chain(2)
    ports = written("g.graphml").replace('<node id="lonely"/>', '<node id="lonely"><port/></node>')
    assert read("ports.graphml", ports).n == 4


def test_labels_that_are_numbers_or_empty(read):
    assert read("g.gml", 'graph [ node [ id 4 label 0 ] node [ id 5 label "" ] ]').labels == ("0", "5")


# --- the Internet Topology Zoo ---
@pytest.mark.skipif(not ZOO.is_dir(), reason="the Internet Topology Zoo files are not next to this repository")
@pytest.mark.parametrize("name", ZOO_NAMES)
def test_real_networks(name):
    g = nx.read_graphml(ZOO / f"{name}.graphml")
    simple = nx.Graph(g)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    graph = load(ZOO / f"{name}.graphml")
    assert (graph.n, len(graph.edges)) == (len(g), simple.number_of_edges())
    assert len(graph.components) == nx.number_connected_components(simple)
    assert graph.labels == tuple(g.nodes[node].get("label", node) for node in g)
    assert graph.degrees == tuple(degree for _, degree in simple.degree())


# --- errors: one line each ---
def complaint(call, *args) -> str:
    with pytest.raises(GraphError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # no foreign traceback above it
    return message


def test_no_file_a_folder_and_an_unknown_suffix(tmp_path, read):
    assert complaint(load, tmp_path / "none.gml").endswith(
        "none.gml: cannot be read (No such file or directory); give the path of a graph file"
    )
    assert "cannot be read (Is a directory)" in complaint(load, tmp_path)
    message = complaint(read, "g.json", "{}")
    assert "cannot read .json; use .txt, .edgelist, .edges, .csv, .graphml, .gml" in message
    assert "a name without suffix" in complaint(read, "graph", "0 1")


@cases(
    "name, content, message",
    *((name, blank, "the file is empty") for name in ("g.txt", "g.graphml", "g.gml") for blank in ("", " \n\n")),
    ("g.txt", "# nothing\n", "no edges; give two node names per line"),
    ("g.gml", "graph [ directed 0 ]", "the file has no nodes"),
    ("g.graphml", GRAPHML.partition("<graph ")[0] + "<graph/></graphml>", "the file has no nodes"),
    (
        "g.graphml",
        written("g.graphml").replace('target="b"', 'target="typo"'),
        "an edge names the node 'typo', which the file does",
    ),
    ("g.txt", b"\xff\xfe\x00g", "not a text in UTF-8"),
    ("g.gml", b"\xff\xfe\x00g", "not a text in UTF-8"),
)
def test_a_file_that_describes_no_graph(read, name, content, message):
    assert f"{name}: {message}" in complaint(read, name, content)


@cases(
    "name, content",
    ("g.graphml", GRAPHML[:400]),
    ("g.graphml", "0 1\n1 2\n"),
    ("g.graphml", "<html><body/></html>"),
    ("g.graphml", written("g.graphml").replace('key="d0"', 'key="d9"')),
    ("g.graphml", b"\x89PNG\r\n\x00\xff"),
    ("g.gml", GML[:120]),
    ("g.gml", "0 1\n1 2\n"),
    ("g.gml", 'graph [ node [ label "no id" ] ]'),
    ("g.gml", "graph [ node [ id 0 ] edge [ source 0 target 9 ] ]"),
    ("g.gml", "graph [ node 3 ]"),
    ("g.gml", 'Creator "open\n\ngraph [ ]'),
    ("g.gml", "graph [ node [ id 0 ] node [ id 0 ] ]"),
)
def test_a_broken_file(read, name, content):
    message = complaint(read, name, content)
    assert f"{name}: not a valid {name[2:]} file (" in message
    assert message.endswith("; fix or re-export it")


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "g.txt").write_text("0 1\n")
    assert load("~/g.txt") == chain(2)
