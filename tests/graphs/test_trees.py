"""Spanning trees: short ones and chains, compared with all trees and all orders of small graphs."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings

import mixwise.graphs as g
from builders import TWO_PAIRS, cases, refused
from mixwise.errors import GraphError
from mixwise.graphs import Graph, spanning_tree, trees
from strategies import connected_graphs


def all_spanning_trees(graph: Graph) -> list[Graph]:
    choices = (Graph(graph.n, edges) for edges in combinations(graph.edges, graph.n - 1))
    return [tree for tree in choices if tree.is_connected]


def assert_spanning_tree(tree: Graph, graph: Graph) -> None:
    assert (tree.labels, tree.n) == (graph.labels, graph.n)
    assert set(tree.edges) <= set(graph.edges)
    assert len(tree.edges) == graph.n - 1
    assert tree.is_connected


# --- short trees ---
@given(graph=connected_graphs(1, 6))
def test_short_tree_is_at_most_one_hop_longer_than_the_best(graph):
    tree = spanning_tree(graph)
    assert_spanning_tree(tree, graph)
    assert tree.diameter <= min(other.diameter for other in all_spanning_trees(graph)) + 1


@cases(
    "graph, diameter",
    *((g.star(7), 2), (g.complete(9), 2), (g.ring(8), 7), (g.chain(5), 4), (g.torus(4, 4), 7), (g.grid(5, 5), 8)),
    (g.chain(1), 0),
)
def test_short_trees_of_known_graphs(graph, diameter):
    """grid: its own diameter; ring: any tree is a chain; torus 4 × 4: 2 · 4 − 1 is the least, its radius being 4."""
    assert spanning_tree(graph).diameter == diameter


def test_short_tree_of_a_large_graph(monkeypatch):
    monkeypatch.setattr(trees, "_ALL_ROOTS", 10)
    for graph in (g.grid(5, 9), g.ring(21), g.random_connected(30, 0.1), g.social_network()):
        tree = spanning_tree(graph)
        assert_spanning_tree(tree, graph)
        assert tree.diameter <= 2 * graph.diameter  # depth of any shortest-path tree


# --- chains ---
def assert_chain(graph: Graph) -> None:
    tree = spanning_tree(graph, "chain")
    assert_spanning_tree(tree, graph)
    assert max(tree.degrees) <= 2


@cases(
    "graph",
    *(g.ring(16), g.ring(1000), g.chain(1), g.chain(2), g.chain(6), g.torus(4, 4), g.torus(5, 5), g.torus(16, 16)),
    *(g.grid(3, 3), g.grid(5, 7), g.hypercube(5), g.complete(12), g.random_connected(16), g.random_regular(40, 3)),
)
def test_chains_are_found(graph):
    assert_chain(graph)


def test_the_chain_of_a_ring_starts_at_0():
    assert spanning_tree(g.ring(9), "chain") == g.chain(9)


@settings(max_examples=150)
@given(graph=connected_graphs(1, 7))
def test_a_chain_is_found_if_there_is_one(graph):
    edges = set(graph.edges) | {(j, i) for i, j in graph.edges}
    exists = any(all(step in edges for step in pairwise(order)) for order in permutations(range(graph.n)))
    if exists:
        assert_chain(graph)
    else:
        with pytest.raises(GraphError, match=r'has no chain through all nodes: .*; use spanning_tree\(graph, "bfs"\)'):
            spanning_tree(graph, "chain")


def test_the_exact_search_finds_what_the_quick_one_misses(monkeypatch):
    monkeypatch.setattr(trees, "_TRIES", 0)
    for graph in (g.grid(3, 4), g.random_connected(10), g.torus(3, 3)):
        assert_chain(graph)
    monkeypatch.setattr(trees, "_STEPS", 3)
    with pytest.raises(GraphError, match=r'may have a chain, but none was found; use spanning_tree\(graph, "bfs"'):
        spanning_tree(g.torus(4, 4), "chain")


@cases(
    "graph, kind, message",
    (g.social_network(), "chain", "all edges run between 14 and 18 nodes"),
    (g.star(5), "chain", "4 nodes have one neighbor only"),
    (TWO_PAIRS, "bfs", r"2 components, but a spanning tree needs a connected graph; add edges, or use one comp"),
    (g.directed_ring(4), "bfs", "needs an undirected graph"),
    (g.ring(4), "star", 'kind = \'star\'; a spanning tree is "bfs" or "chain"'),
)
def test_trees_that_do_not_exist(graph, kind, message):
    refused(GraphError, message, spanning_tree, graph, kind)
