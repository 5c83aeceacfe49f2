"""Spanning trees: short ones, chains, and trees chosen by a Gram matrix; all trees of small graphs are the judge."""

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise.graphs as g
from mixwise.errors import GraphError
from mixwise.graphs import Graph, gram_tree, paths, spanning_tree, tree_bias, trees
from strategies import connected_graphs, gram_matrices


def all_spanning_trees(graph: Graph) -> list[Graph]:
    choices = combinations(graph.edges, graph.n - 1)
    return [Graph(graph.n, edges) for edges in choices if without_cycle(graph.n, edges)]


def without_cycle(n: int, edges: tuple[tuple[int, int], ...]) -> bool:
    part = list(range(n))  # the parts that the edges so far leave, by one of their nodes
    for i, j in edges:
        one, other = part[i], part[j]
        if one == other:
            return False
        part = [other if at == one else at for at in part]
    return True


def assert_spanning_tree(tree: Graph, graph: Graph) -> None:
    assert tree.n == graph.n
    assert set(tree.edges) <= set(graph.edges)
    assert len(tree.edges) == graph.n - 1
    assert tree.is_connected


# --- short trees ---
@settings(max_examples=60)
@given(graph=connected_graphs(1, 6))
def test_short_tree_is_at_most_one_hop_longer_than_the_best(graph):
    tree = spanning_tree(graph)
    assert_spanning_tree(tree, graph)
    assert tree.diameter <= min(other.diameter for other in all_spanning_trees(graph)) + 1


@pytest.mark.parametrize(
    ("graph", "diameter"),
    [
        (g.star(7), 2),
        (g.complete(9), 2),
        (g.ring(8), 7),
        (g.chain(5), 4),
        (g.torus(4, 4), 7),
        (g.grid(5, 5), 8),
        (g.chain(1), 0),
    ],
)
def test_short_trees_of_known_graphs(graph, diameter):
    """grid: its own diameter; ring: any tree is a chain; torus 4 × 4: 2 · 4 − 1 is the least, its radius being 4."""
    assert spanning_tree(graph).diameter == diameter


def test_short_tree_of_a_large_graph(monkeypatch):
    monkeypatch.setattr(trees, "_ALL_ROOTS", 10)
    for graph in (g.grid(5, 9), g.ring(21), g.random_connected(30, 0.1)):
        tree = spanning_tree(graph)
        assert_spanning_tree(tree, graph)
        assert tree.diameter <= 2 * graph.diameter  # depth of any shortest-path tree


# --- chains ---
def assert_chain(graph: Graph) -> None:
    tree = spanning_tree(graph, "chain")
    assert_spanning_tree(tree, graph)
    assert max(tree.degrees) <= 2


@pytest.mark.parametrize(
    "graph",
    [
        *(g.ring(16), g.ring(1000), g.chain(1), g.chain(2), g.chain(6), g.torus(4, 4), g.torus(5, 5), g.torus(16, 16)),
        *(g.grid(3, 3), g.grid(5, 7), g.hypercube(5), g.complete(12), g.random_connected(16), g.random_regular(40, 3)),
    ],
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
    monkeypatch.setattr(paths, "_TRIES", 0)
    for graph in (g.grid(3, 4), g.random_connected(10), g.torus(3, 3)):
        assert_chain(graph)
    monkeypatch.setattr(paths, "_STEPS", 3)
    with pytest.raises(GraphError, match=r'may have a chain, but none was found; use spanning_tree\(graph, "bfs"'):
        spanning_tree(g.torus(4, 4), "chain")


def test_no_chain_for_an_obvious_reason():
    with pytest.raises(GraphError, match="all edges run between 14 and 18 nodes"):
        spanning_tree(g.social_network(), "chain")
    with pytest.raises(GraphError, match="4 nodes have one neighbor only"):
        spanning_tree(g.star(5), "chain")


# --- trees that fit the data ---
def bias(tree: Graph, gram: np.ndarray, decay: float, radius: int, weight: float) -> float:
    """f(T) from its formula, ball by ball, with a walk of h steps for the ball of radius h."""
    n = tree.n
    C = np.eye(n) - 1 / n
    Gamma = C @ gram @ C
    total, reach = 0.0, np.eye(n)
    for h in range(1, radius + 1):
        reach = reach @ (np.eye(n) + tree.adjacency.toarray())
        for ball in reach > 0:
            total += decay**h * (ball @ Gamma @ ball) / ball.sum() ** 2
    return total / np.trace(Gamma) + weight * tree.diameter


@settings(max_examples=60)
@given(
    data=st.data(),
    graph=connected_graphs(2, 9),
    decay=st.sampled_from([0.3, 0.5, 1.0]),
    radius=st.integers(1, 6),
    weight=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_tree_bias_is_its_formula(data, graph, decay, radius, weight):
    gram = data.draw(gram_matrices(graph.n, min_rank=1, centered=False))
    tree = spanning_tree(graph)
    value = tree_bias(tree, gram, decay=decay, radius=radius, diameter_weight=weight)
    assert value == pytest.approx(bias(tree, gram, decay, radius, weight), rel=1e-6, abs=1e-9)


@settings(max_examples=40)
@given(data=st.data(), graph=connected_graphs(2, 10), weight=st.sampled_from([0.0, 0.01, 0.5]))
def test_gram_tree_is_never_worse_than_its_starts_and_cannot_be_improved_by_a_swap(data, graph, weight):
    gram = data.draw(gram_matrices(graph.n, min_rank=1))
    tree = gram_tree(graph, gram, diameter_weight=weight)
    assert_spanning_tree(tree, graph)
    value = tree_bias(tree, gram, diameter_weight=weight)
    assert value <= tree_bias(spanning_tree(graph), gram, diameter_weight=weight) + 1e-12
    for added in set(graph.edges) - set(tree.edges):
        for dropped in tree.edges:
            edges = tuple(edge for edge in (*tree.edges, added) if edge != dropped)
            if without_cycle(graph.n, edges):
                other = Graph(graph.n, edges)
                assert value <= tree_bias(other, gram, diameter_weight=weight) + 1e-9


def test_gram_tree_is_nearly_always_the_best_of_all_trees():
    """On 40 small graphs with random data: the best of all trees on 36 at least, and within 5 % on the others."""
    rng = np.random.default_rng(0)
    ratios = []
    while len(ratios) < 40:
        n = int(rng.integers(4, 7))
        graph = g.random_connected(n, 0.7, seed=len(ratios))
        G = rng.standard_normal((n, 2))
        best = min(tree_bias(tree, G @ G.T) for tree in all_spanning_trees(graph))
        ratios.append(tree_bias(gram_tree(graph, G @ G.T), G @ G.T) / best)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 36
    assert max(ratios) < 1.05


def test_complementary_nodes_become_neighbors():
    """Two kinds of data on a complete graph: in a tree with perfect balls of radius 1, every node hears both kinds."""
    G = np.repeat([[1.0], [-1.0]], 4, axis=0)
    tree = gram_tree(g.complete(8), G @ G.T, diameter_weight=0.0)
    assert all(any(G[j, 0] != G[i, 0] for j in tree.neighbors(i)) for i in range(8))


def test_without_data_the_diameter_alone_decides():
    assert gram_tree(g.complete(8), np.zeros((8, 8))).diameter == 2
    assert gram_tree(g.complete(8), np.ones((8, 8))).diameter == 2  # equal updates: nothing is left when centered


def test_a_heavy_diameter_makes_short_trees():
    gram = np.cov(np.random.default_rng(0).standard_normal((16, 40)))
    light, heavy = (gram_tree(g.torus(4, 4), gram, diameter_weight=weight).diameter for weight in (0.0, 10.0))
    assert heavy == 7  # the least, see above
    assert heavy <= light


@pytest.mark.parametrize("unit", [1e-300, 1e-8, 1e8, 1e300])
def test_units_and_means_do_not_matter(unit):
    G = np.random.default_rng(3).standard_normal((16, 5))
    tree = gram_tree(g.torus(4, 4), G @ G.T)
    assert gram_tree(g.torus(4, 4), unit * (G @ G.T)) == tree
    shifted = G + 0.5
    assert gram_tree(g.torus(4, 4), shifted @ shifted.T) == tree


def test_labels_stay():
    tree = spanning_tree(g.social_network())
    assert tree.labels == g.social_network().labels
    assert gram_tree(g.social_network(), np.eye(32), restarts=1).labels == g.social_network().labels


@pytest.mark.parametrize("make", [spanning_tree, lambda graph: gram_tree(graph, np.eye(graph.n))])
def test_trees_need_a_connected_undirected_graph(make):
    with pytest.raises(GraphError, match=r"2 components, but .* needs a connected graph; add edges, or use one comp"):
        make(Graph(4, [(0, 1), (2, 3)]))
    with pytest.raises(GraphError, match="needs an undirected graph"):
        make(g.directed_ring(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 0.0}, r"decay = 0.0; .* \(0, 1\]"),
        ({"decay": float("nan")}, "decay = nan"),
        ({"radius": 0}, "radius = 0"),
        ({"diameter_weight": -1.0}, "diameter_weight = -1.0"),
        ({"restarts": 0}, "restarts = 0"),
        ({"gram": np.eye(3)}, r"shape \(3, 3\), but the graph has 4 nodes"),
        ({"gram": np.diag([1, np.nan, 1, 1])}, r"Γ\[1, 1\] = nan; .*node 1's update"),
    ],
)
def test_gram_tree_refusals(options, message):
    gram = options.pop("gram", np.eye(4))
    with pytest.raises(GraphError, match=message):
        gram_tree(g.ring(4), gram, **options)


def test_other_refusals():
    with pytest.raises(GraphError, match='kind = \'star\'; a spanning tree is "bfs" or "chain"'):
        spanning_tree(g.ring(4), "star")
    with pytest.raises(GraphError, match="is not a tree"):
        tree_bias(g.ring(4), np.eye(4))
