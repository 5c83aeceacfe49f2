"""Graph is a value that agrees with networkx about who reaches whom."""

import copy
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixwise.errors import GraphError
from mixwise.graphs import Graph, chain, ring
from strategies import connected_graphs, gram_matrices, graphs


def as_networkx(graph: Graph) -> nx.Graph:
    g = nx.DiGraph() if graph.directed else nx.Graph()
    g.add_nodes_from(range(graph.n))
    g.add_edges_from(graph.edges)
    return g


def inverse(order) -> list[int]:
    return np.argsort(order).tolist()


# --- the strategies themselves ---
@given(connected_graphs())
def test_the_strategy_draws_connected_graphs(graph):
    assert graph.is_connected
    assert 1 <= graph.n <= 12
    assert not graph.directed


@given(st.integers(1, 12).flatmap(gram_matrices))
def test_the_strategy_draws_positive_semidefinite_matrices_of_centered_rows(gram):
    trace = np.trace(gram)
    assert (gram == gram.T).all()
    # Eigenvalues and sums are computed to a few rounding errors of the largest entry, which the trace bounds.
    assert np.linalg.eigvalsh(gram).min() >= -1e-13 * len(gram) * trace
    assert np.abs(gram.sum(axis=0)).max() <= 1e-13 * len(gram) * trace


# --- lemmas ---
@given(graphs(directed=False))
def test_handshake(graph):
    assert sum(graph.degrees) == 2 * len(graph.edges)
    assert graph.degrees == graph.in_degrees


@given(graphs(directed=True))
def test_every_arc_leaves_once_and_arrives_once(graph):
    assert sum(graph.degrees) == sum(graph.in_degrees) == len(graph.edges)


@given(graphs())
def test_neighbors_agree_with_the_adjacency_matrix(graph):
    A = graph.adjacency.toarray()
    assert A.diagonal().sum() == 0
    assert ((A == 0) | (A == 1)).all()
    assert graph.directed or (A == A.T).all()
    for i in range(graph.n):
        assert graph.neighbors(i) == tuple(np.flatnonzero(A[i]))
        assert graph.in_neighbors(i) == tuple(np.flatnonzero(A[:, i]))
        assert graph.degrees[i] == len(graph.neighbors(i))
        assert graph.in_degrees[i] == len(graph.in_neighbors(i))


@given(graphs())
def test_pattern_is_the_adjacency_and_the_loops_in_row_order_and_in_column_order(graph):
    pattern = graph.pattern
    expected = np.argwhere(graph.adjacency.toarray() + np.eye(graph.n))
    assert np.array_equal(np.stack([pattern.rows, pattern.cols], axis=1), expected)
    by_column = list(zip(pattern.cols[pattern.by_column], pattern.rows[pattern.by_column], strict=True))
    assert by_column == sorted(by_column)
    for i in range(graph.n):
        assert (pattern.rows[pattern.indptr[i] : pattern.indptr[i + 1]] == i).all()


# --- networkx as the oracle ---
@given(graphs())
def test_components_agree_with_networkx(graph):
    g = as_networkx(graph)
    found = nx.strongly_connected_components(g) if graph.directed else nx.connected_components(g)
    assert graph.components == tuple(sorted(tuple(sorted(group)) for group in found))
    assert graph.is_connected == (nx.is_strongly_connected(g) if graph.directed else nx.is_connected(g))


@given(graphs())
def test_the_diameter_agrees_with_networkx_or_is_refused(graph):
    if graph.is_connected:
        assert graph.diameter == nx.diameter(as_networkx(graph))
    else:
        with pytest.raises(GraphError, match=rf"{len(graph.components)} components.*subgraph"):
            _ = graph.diameter


@given(graphs(), st.data())
def test_subgraph_agrees_with_networkx(graph, data):
    kept = data.draw(st.lists(st.integers(0, graph.n - 1), unique=True, min_size=1))
    renamed = nx.relabel_nodes(as_networkx(graph).subgraph(kept), {node: i for i, node in enumerate(kept)})
    assert graph.subgraph(kept) == Graph(len(kept), list(renamed.edges), graph.directed)


def test_the_diameter_of_a_graph_larger_than_one_block_of_sources():
    assert chain(600).diameter == 599


# --- permutations ---
@given(graphs(), st.data())
def test_permuted_is_an_isomorphism(graph, data):
    order = data.draw(st.permutations(range(graph.n)))
    moved = graph.permuted(order)
    assert [moved.degrees[order[a]] for a in range(graph.n)] == list(graph.degrees)
    for i in range(graph.n):
        assert set(moved.neighbors(order[i])) == {order[j] for j in graph.neighbors(i)}


@given(graphs(), st.data())
def test_permuting_back_gives_the_graph(graph, data):
    order = data.draw(st.permutations(range(graph.n)))
    assert graph.permuted(order).permuted(inverse(order)) == graph


def test_labels_stay_with_their_places():
    graph = Graph(3, [(0, 1), (1, 2)], labels=["left", "middle", "right"])
    moved = graph.permuted([1, 0, 2])
    assert moved.labels == ("middle", "left", "right")
    assert moved.degrees[moved.labels.index("middle")] == 2
    assert graph.subgraph([2, 1]).labels == ("right", "middle")


# --- a value ---
@given(graphs(), st.data())
def test_equality_and_hash_do_not_depend_on_how_edges_are_written(graph, data):
    edges = list(data.draw(st.permutations(graph.edges)))
    turned = edges if graph.directed else [(j, i) for i, j in edges]
    same = Graph(graph.n, [*turned, *edges, (0, 0)], graph.directed)
    assert same == graph
    assert hash(same) == hash(graph)
    assert len({same, graph}) == 1


def test_what_makes_graphs_different():
    assert Graph(3, [(0, 1)]) != Graph(4, [(0, 1)])
    assert Graph(3, [(0, 1)]) != Graph(3, [(0, 1)], directed=True)
    assert Graph(3, [(0, 1)], directed=True) != Graph(3, [(1, 0)], directed=True)
    assert Graph(3, [(0, 1)]) != "a graph"
    assert Graph(2, [(0, 1)], labels=["a", "b"]) == Graph(2, [(0, 1)])  # labels are not part of the value


def test_a_graph_cannot_be_changed():
    graph = ring(4)
    with pytest.raises(AttributeError):
        graph.n = 5
    with pytest.raises(ValueError, match="read-only"):
        graph.edge_array[0, 0] = 3
    with pytest.raises(ValueError, match="read-only"):
        graph.pattern.rows[0] = 3


@given(graphs())
def test_pickle_and_copy_give_an_equal_read_only_graph(graph):
    hash(graph)
    _ = graph.components
    for twin in (pickle.loads(pickle.dumps(graph)), copy.copy(graph), copy.deepcopy(graph)):
        assert twin == graph
        assert hash(twin) == hash(graph)
        assert twin.directed == graph.directed
        assert not twin.edge_array.flags.writeable


def test_a_fresh_process_finds_a_pickled_graph_in_a_set_and_does_not_need_networkx():
    graph = Graph(3, [(0, 1)], labels=["a", "b", "c"])
    hash(graph)  # cached here; Python salts the hash of bytes anew in every process
    script = (
        "import pickle, sys; from mixwise.graphs import Graph; g = pickle.load(sys.stdin.buffer); "
        "assert g in {Graph(3, [(0, 1)])}; assert g.labels == ('a', 'b', 'c'); assert 'networkx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(graph), check=True, timeout=60)


def test_repr_says_what_it_is():
    assert repr(ring(5)) == "Graph(n=5, 5 edges)"
    assert repr(Graph(3, [(0, 1)], directed=True)) == "Graph(n=3, directed, 1 arcs)"


# --- directed ---
def test_a_directed_ring_is_strongly_connected_and_a_directed_chain_is_not():
    arcs = [(i, (i + 1) % 5) for i in range(5)]
    assert Graph(5, arcs, directed=True).diameter == 4
    assert Graph(5, arcs, directed=True).is_regular
    broken = Graph(5, arcs[:-1], directed=True)
    assert len(broken.components) == 5
    assert not broken.is_regular
    assert broken.in_neighbors(0) == ()
    assert broken.neighbors(0) == (1,)


# --- errors ---
@pytest.mark.parametrize("n", [0, -3, 2.5])
def test_the_number_of_nodes_is_a_positive_whole_number(n):
    with pytest.raises(GraphError, match=f"at least 1, got n = {n}"):
        Graph(n, [])


@pytest.mark.parametrize(
    "edges",
    [
        [(0, 1), (1,)],
        [(0, 1, 5), (1, 2, 5)],  # two triples are not three pairs
        [0, 1, 1, 2],
        [(0.0, 1.0)],
        [("a", "b")],
        np.zeros((3, 3), dtype=int),
        [(0, 2**70)],
    ],
)
def test_edges_are_pairs_of_numbers(edges):
    with pytest.raises(GraphError, match="pairs of node numbers"):
        Graph(3, edges)


@pytest.mark.parametrize("edge", [(0, 3), (-1, 2)])
def test_an_edge_outside_the_graph_is_named(edge):
    with pytest.raises(GraphError, match=rf"\({edge[0]}, {edge[1]}\).*outside 0..2.*renumber"):
        Graph(3, [(0, 1), edge])


def test_one_label_per_node():
    with pytest.raises(GraphError, match="2 labels for 3 nodes"):
        Graph(3, [], labels=["a", "b"])


@pytest.mark.parametrize("i", [-1, 4])
def test_a_node_that_is_not_there(i):
    for ask in (ring(4).neighbors, ring(4).in_neighbors, Graph(4, [], directed=True).in_neighbors):
        with pytest.raises(GraphError, match=rf"no node {i}; the nodes are 0..3"):
            ask(i)
    with pytest.raises(GraphError, match=f"no node {i}"):
        ring(4).subgraph([0, i])


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1, 2], [1, 2, 3, 4]])
def test_an_order_that_is_no_permutation(order):
    with pytest.raises(GraphError, match=r"not a permutation of the nodes 0..3"):
        ring(4).permuted(order)


def test_a_subgraph_names_each_node_once_and_at_least_one():
    with pytest.raises(GraphError, match="names a node twice"):
        ring(4).subgraph([0, 1, 0])
    with pytest.raises(GraphError, match="at least 1"):
        ring(4).subgraph([])
