"""Graph is a value that agrees with networkx about adjacency and connectivity."""

import copy
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import as_networkx, cases, refused
from mixwise.errors import GraphError
from mixwise.graphs import Graph, chain, ring
from strategies import graphs


# --- adjacency ---
@given(graphs())
def test_neighbors_agree_with_the_adjacency_matrix(graph):
    A = graph.adjacency.toarray()
    assert A.diagonal().sum() == 0
    assert ((A == 0) | (A == 1)).all()
    assert graph.directed or (A == A.T).all()
    for i in range(graph.n):
        assert graph.neighbors(i) == tuple(np.flatnonzero(A[i]))
        assert graph.in_neighbors(i) == tuple(np.flatnonzero(A[:, i]))
        assert (graph.degrees[i], graph.in_degrees[i]) == (A[i].sum(), A[:, i].sum())
    assert A.sum() == len(graph.edges) * (1 if graph.directed else 2)


@given(graphs())
def test_pattern_is_the_adjacency_and_the_loops_in_row_order_and_in_column_order(graph):
    pattern = graph.pattern
    entries = np.stack([pattern.rows, pattern.cols], axis=1)
    np.testing.assert_array_equal(entries, np.argwhere(graph.adjacency.toarray() + np.eye(graph.n)))
    by_column = entries[pattern.by_column, ::-1].tolist()
    assert by_column == sorted(by_column)
    for i in range(graph.n):
        assert (pattern.rows[pattern.indptr[i] : pattern.indptr[i + 1]] == i).all()


# --- networkx as the oracle ---
@given(graphs())
def test_components_and_diameter_agree_with_networkx(graph):
    g = as_networkx(graph)
    found = nx.strongly_connected_components(g) if graph.directed else nx.connected_components(g)
    assert graph.components == tuple(sorted(tuple(sorted(group)) for group in found))
    assert graph.is_connected == (nx.is_strongly_connected(g) if graph.directed else nx.is_connected(g))
    if graph.is_connected:
        assert graph.diameter == nx.diameter(g)
    else:
        with pytest.raises(GraphError, match=rf"{len(graph.components)} components, its diameter is inf.*subgraph"):
            _ = graph.diameter


@given(graphs(), st.data())
def test_subgraph_agrees_with_networkx(graph, data):
    kept = data.draw(st.lists(st.integers(0, graph.n - 1), unique=True, min_size=1))
    renamed = nx.relabel_nodes(as_networkx(graph).subgraph(kept), {node: i for i, node in enumerate(kept)})
    assert graph.subgraph(kept) == Graph(len(kept), list(renamed.edges), graph.directed)


def test_the_diameter_of_a_graph_larger_than_one_block_of_sources():
    assert chain(600).diameter == 599


def test_a_graph_is_regular_if_all_in_and_out_degrees_are_equal():
    arcs = [(i, (i + 1) % 5) for i in range(5)]
    assert Graph(5, arcs, directed=True).is_regular
    assert not Graph(5, arcs[:-1], directed=True).is_regular


# --- permutations ---
@given(graphs(), st.data())
def test_permuted_is_an_isomorphism(graph, data):
    order = data.draw(st.permutations(range(graph.n)))
    moved = graph.permuted(order)
    for i in range(graph.n):
        assert set(moved.neighbors(order[i])) == {order[j] for j in graph.neighbors(i)}
        assert moved.degrees[order[i]] == graph.degrees[i]
    assert moved.permuted(np.argsort(order).tolist()) == graph


def test_labels_move_with_their_places():
    graph = Graph(3, [(0, 1), (1, 2)], labels=["left", "middle", "right"])
    moved = graph.permuted([1, 2, 0])  # not its own inverse: node 1 takes the place of node 0
    assert moved.labels == ("right", "left", "middle")
    assert moved.edges == ((0, 2), (1, 2))
    assert graph.subgraph([2, 1]).labels == ("right", "middle")


# --- value semantics ---
@given(graphs(), st.data())
def test_equality_and_hash_do_not_depend_on_how_edges_are_written(graph, data):
    edges = list(data.draw(st.permutations(graph.edges)))
    turned = edges if graph.directed else [(j, i) for i, j in edges]
    same = Graph(graph.n, [*turned, *edges, (0, 0)], graph.directed)
    assert (same, hash(same), len({same, graph})) == (graph, hash(graph), 1)


def test_n_direction_and_edges_make_graphs_different_and_labels_do_not():
    one = Graph(3, [(0, 1)])
    assert (repr(one), repr(Graph(3, [(0, 1)], directed=True))) == (
        "Graph(n=3, 1 edges)",
        "Graph(n=3, directed, 1 arcs)",
    )
    assert one not in (Graph(4, [(0, 1)]), Graph(3, [(0, 1)], directed=True), "a graph")
    assert Graph(3, [(0, 1)], directed=True) != Graph(3, [(1, 0)], directed=True)
    assert Graph(3, [(0, 1)], labels="abc") == one


def test_a_graph_cannot_be_changed():
    graph = ring(4)
    with pytest.raises(AttributeError):
        graph.n = 5
    for array in (graph.edge_array, *graph.pattern, *graph.arcs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3


@given(graphs())
def test_pickle_and_copy_give_an_equal_read_only_graph(graph):
    hash(graph)
    _ = graph.components
    for twin in (pickle.loads(pickle.dumps(graph)), copy.copy(graph), copy.deepcopy(graph)):
        assert (twin, hash(twin), twin.directed) == (graph, hash(graph), graph.directed)
        assert not twin.edge_array.flags.writeable


def test_a_fresh_process_finds_a_pickled_graph_in_a_set_and_does_not_need_networkx():
    graph = Graph(3, [(0, 1)], labels=["a", "b", "c"])
    hash(graph)  # cached here; Python salts the hash of bytes differently in every process
    script = (
        "import pickle, sys; from mixwise.graphs import Graph; g = pickle.load(sys.stdin.buffer); "
        "assert g in {Graph(3, [(0, 1)])}; assert g.labels == ('a', 'b', 'c'); assert 'networkx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(graph), check=True, timeout=60)


# --- errors ---
PAIRS = "pairs of node numbers"


@cases(
    "call, message",
    *((lambda n=n: Graph(n, []), f"at least 1, got n = {n}") for n in (0, -3, 2.5)),
    (lambda: Graph(3, [(0, 1), (1,)]), PAIRS),
    (lambda: Graph(3, [(0, 1, 5), (1, 2, 5)]), PAIRS),  # two triples are not three pairs
    (lambda: Graph(3, [0, 1, 1, 2]), PAIRS),
    (lambda: Graph(3, [(0.0, 1.0)]), PAIRS),
    (lambda: Graph(3, [("a", "b")]), PAIRS),
    (lambda: Graph(3, [(0, 2**70)]), PAIRS),
    (lambda: Graph(3, [(0, 1), (0, 3)]), r"\(0, 3\).*outside 0..2.*renumber"),
    (lambda: Graph(3, [(0, 1), (-1, 2)]), r"\(-1, 2\).*outside 0..2.*renumber"),
    (lambda: Graph(3, [], labels=["a", "b"]), "2 labels for 3 nodes"),
    (lambda: ring(4).neighbors(-1), "no node -1; the nodes are 0..3"),
    (lambda: ring(4).in_neighbors(4), "no node 4; the nodes are 0..3"),
    (lambda: ring(4).subgraph([0, 4]), "no node 4"),
    (lambda: ring(4).subgraph([0, 1, 0]), "names a node twice"),
    (lambda: ring(4).subgraph([]), "at least 1"),
    *(
        (lambda order=order: ring(4).permuted(order), r"not a permutation of the nodes 0..3")
        for order in ([0, 1], [0, 1, 1, 2], [1, 2, 3, 4])
    ),
)
def test_errors_give_the_value_and_the_rule(call, message):
    refused(GraphError, message, call)
