"""D-Cliques: cliques cover the nodes, their skew falls below that of random ones, and to 0 where it can."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import cases, refused
from mixwise.errors import GraphError
from mixwise.graphs import clique_skew, d_cliques
from mixwise.mixing import clique_averaging, consensus_factor, metropolis_hastings, relative_heterogeneity
from mixwise.seeding import numpy_generator


def random_cliques(n: int, size: int, seed: int) -> list[np.ndarray]:
    return np.array_split(numpy_generator(seed, "d_cliques").permutation(n), -(-n // size))


def counts_of(n: int, classes: int, alpha: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multinomial(rng.integers(20, 200, n), rng.dirichlet(np.full(classes, alpha), n))


SEEDS, SIZES = st.integers(0, 1000), {"n": st.integers(1, 30), "classes": st.integers(1, 6), "size": st.integers(1, 12)}


@given(seed=SEEDS, between=st.sampled_from(["ring", "full"]), **SIZES)
def test_cliques_cover_the_nodes_and_the_graph_is_connected(n, classes, size, seed, between):
    counts = counts_of(n, classes, 0.2, seed)
    found = d_cliques(counts, size, seed, between)
    assert sorted(i for clique in found.cliques for i in clique) == list(range(n))
    sizes = [len(clique) for clique in found.cliques]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-n // size)
    edges = set(found.graph.edges)
    inside = {(i, j) for clique in found.cliques for i in clique for j in clique if i < j}
    assert inside <= edges
    assert found.graph.is_connected
    k = len(sizes)
    assert len(edges - inside) == (k * (k - 1) // 2 if between == "full" else k if k > 2 else k - 1)
    assert clique_skew(counts, found.cliques) <= clique_skew(counts, random_cliques(n, size, seed)) + 1e-9


@given(n=st.integers(4, 20), seed=st.integers(0, 1000))
def test_in_the_end_no_swap_lowers_the_skew(n, seed):
    counts = counts_of(n, 5, 0.1, seed)
    final = d_cliques(counts, 4, seed).cliques
    least = clique_skew(counts, final)
    for i, j in combinations(range(n), 2):
        swapped = [[{i: j, j: i}.get(node, node) for node in clique] for clique in final]
        assert clique_skew(counts, swapped) >= least - 1e-9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "classes", "size"), [(100, 10, 10), (40, 10, 10), (30, 5, 10), (12, 3, 3), (60, 10, 20)])
def test_perfect_cliques_of_one_label_per_node_are_found(n, classes, size, seed):
    labels = np.random.default_rng(seed).permutation(np.arange(n) % classes)
    counts = 50 * np.eye(classes)[labels]
    found = d_cliques(counts, size, seed)
    assert clique_skew(counts, found.cliques) == pytest.approx(0, abs=1e-9)
    # Every clique averages to the whole, so mixing inside cliques leaves no heterogeneity (the paper's Example 2).
    W_g = clique_averaging(found.cliques, found.graph)
    assert relative_heterogeneity(np.eye(classes)[labels], W_g) <= 1e-25
    assert consensus_factor(metropolis_hastings(found.graph)) > 0


def test_nodes_with_many_and_few_samples_count_the_same():
    """Clique averaging gives every node the same weight, so a large node is not worth two small ones."""
    assert clique_skew([[1, 0], [0, 1000]], [(0, 1)]) == 0
    assert clique_skew([[1, 0], [0, 1000]], [(0,), (1,)]) == 2


def test_edges_between_cliques_are_spread_over_the_nodes():
    found = d_cliques(np.ones((30, 2)), 6, between="full")
    outside = np.array(found.graph.degrees) - 5
    assert outside.max() - outside.min() <= 1


def test_a_seed_names_the_cliques():
    counts = counts_of(20, 4, 0.2, 0)
    assert d_cliques(counts, 5, 1) == d_cliques(counts, 5, 1)
    assert d_cliques(np.ones((20, 2)), 5, 1) != d_cliques(np.ones((20, 2)), 5, 2)


@cases(
    "counts, options, message",
    ([[1, 2], [0, 0]], {}, "node 1 has no samples"),
    ([[1, -2]], {}, "node 0 has -2.0 samples of label 1"),
    ([[1, float("nan")]], {}, "node 0 has nan samples"),
    ([1, 2], {}, r"got shape \(2,\)"),
    ([[1, 2]], {"size": 0}, "size = 0; a clique has a whole number of nodes"),
    ([[1, 2]], {"between": "star"}, "between = 'star'; cliques are joined by"),
)
def test_refusals(counts, options, message):
    refused(GraphError, message, d_cliques, counts, **{"size": 2} | options)
