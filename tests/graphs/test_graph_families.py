"""Every family has the degrees, the diameter and the randomness that its formula promises."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import mixwise.graphs as g
from builders import as_networkx, cases, refused
from mixwise.errors import GraphError
from mixwise.graphs import Graph, families
from mixwise.seeding import numpy_generator
from strategies import graphs

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32)


# --- fixed families ---
@given(n=sizes, rows=st.integers(1, 7), cols=st.integers(1, 7), dimension=st.integers(0, 6))
def test_families_are_those_of_networkx_and_have_the_diameters_that_they_promise(n, rows, cols, dimension):
    """An edge that would be a loop or a repeat is left out: a ring of 1 has no edge, a ring of 2 one."""
    for graph, expected, diameter in (
        (g.ring(n), nx.cycle_graph(n), n // 2),
        (g.chain(n), nx.path_graph(n), n - 1),
        (g.star(n), nx.star_graph(n - 1), min(2, n - 1)),
        (g.complete(n), nx.complete_graph(n), min(1, n - 1)),
        (g.directed_ring(n), nx.cycle_graph(n, create_using=nx.DiGraph), n - 1),
        (g.torus(rows, cols), nx.grid_2d_graph(rows, cols, periodic=True), rows // 2 + cols // 2),
        (g.grid(rows, cols), nx.grid_2d_graph(rows, cols), rows + cols - 2),
        (g.hypercube(dimension), nx.hypercube_graph(dimension) if dimension else nx.empty_graph(1), dimension),
    ):
        assert graph == g.from_networkx(nx.convert_node_labels_to_integers(expected))
        assert graph.diameter == diameter


@given(n=sizes)
def test_exponential_graphs(n):
    """Any distance is a sum of different powers of two below n, so ⌈log₂ n⌉ hops are enough."""
    both, one_way, hops = g.exponential(n), g.directed_exponential(n), int(np.ceil(np.log2(n)))
    assert set(one_way.edges) == {(i, (i + 2**k) % n) for i in range(n) for k in range(hops)}
    assert one_way.directed
    assert Graph(n, one_way.edges) == both
    assert max(both.diameter, one_way.diameter) <= hops


def test_social_network_joins_women_to_events():
    graph = g.social_network()
    assert (graph.n, len(graph.edges)) == (32, 89)
    assert graph.is_connected
    assert graph.labels[0] == "Evelyn Jefferson"
    assert graph.labels[18:] == tuple(f"E{k}" for k in range(1, 15))
    assert all(i < 18 <= j for i, j in graph.edges)


# --- random families ---
RANDOM = [(g.random_connected, (16,)), (g.random_regular, (16, 4)), (g.random_regular, (16, 2))]
RANDOM += [(g.erdos_renyi, (30, 0.2)), (g.random_geometric, (30, 0.3)), (g.small_world, (30, 4, 0.3))]


@pytest.mark.parametrize(("family", "arguments"), RANDOM)
def test_a_seed_names_one_graph_and_no_global_generator_is_touched(family, arguments):
    def states() -> tuple[bytes, str]:
        return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state())

    before = states()
    assert family(*arguments, seed=3) == family(*arguments, seed=3)
    assert len({family(*arguments, seed=seed) for seed in range(5)}) == 5
    assert states() == before


@given(n=st.integers(2, 9), share=st.floats(0, 1), seed=seeds)
def test_random_connected_is_what_removing_edge_by_edge_gives(n, share, seed):
    pairs = n * (n - 1) // 2
    target = round(n - 1 + share * (pairs - n + 1))
    left = nx.complete_graph(n)
    everything = list(left.edges)
    for e in numpy_generator(seed, "random_connected").permutation(pairs)[::-1]:
        if left.number_of_edges() > target:
            left.remove_edge(*everything[e])
            if not nx.is_connected(left):
                left.add_edge(*everything[e])
    assert g.random_connected(n, target / pairs, seed) == g.from_networkx(left)


def test_random_connected_at_the_extremes():
    assert (g.random_connected(7, keep=1), g.random_connected(1)) == (g.complete(7), Graph(1, []))
    rule = "keep = 0.2 leaves 6 edges, but 8 nodes need 7; keep at least 0.25"
    refused(GraphError, rule, g.random_connected, 8, keep=0.2)
    assert len(g.random_connected(16).edges) == 60  # the paper's: half of 120


@pytest.mark.parametrize(
    ("n", "degree"), [(1, 0), (2, 1), (3, 2), (8, 3), (9, 4), (16, 2), (16, 13), (16, 15), (60, 55)]
)
def test_random_regular(n, degree):
    graph = g.random_regular(n, degree, seed=1)
    assert set(graph.degrees) == {degree}
    assert graph.is_connected


def test_erdos_renyi_gives_every_pair_its_probability():
    n, p, draws = 6, 0.3, 500
    assert (g.erdos_renyi(n, 0.0), g.erdos_renyi(n, 1.0)) == (Graph(n, []), g.complete(n))
    counts = sum(g.erdos_renyi(n, p, seed).adjacency.toarray() for seed in range(draws))
    share = counts[np.triu_indices(n, k=1)] / draws
    # 15 shares with a deviation of √(p(1 − p)/draws) ≈ 0.0205 each: 5 of them are not reached by chance.
    assert np.abs(share - p).max() < 5 * np.sqrt(p * (1 - p) / draws)


def test_sparse_random_graphs_scale_to_100_000_nodes():
    n = 100_000
    mean = 4 * (n - 1) / 2
    assert abs(len(g.erdos_renyi(n, 4 / n).edge_array) - mean) < 6 * np.sqrt(mean)  # Poisson: variance = mean
    assert g.random_geometric(n, 0.002).n == n


def test_random_geometric_grows_with_the_radius():
    nested = [set(g.random_geometric(40, radius, seed=2).edges) for radius in (0.0, 0.1, 0.3, 2**0.5)]
    assert set() == nested[0] < nested[1] < nested[2] < nested[3] == set(g.complete(40).edges)
    assert g.random_geometric(1, 0.5) == Graph(1, [])


@pytest.mark.parametrize(("n", "neighbors", "rewire"), [(3, 2, 0.5), (20, 4, 0.0), (20, 4, 0.1), (20, 6, 1.0)])
def test_small_world(n, neighbors, rewire):
    graph = g.small_world(n, neighbors, rewire)
    assert len(graph.edges) == n * neighbors // 2
    assert graph.is_connected
    if rewire == 0:
        assert set(graph.neighbors(0)) == {step % n for k in range(1, neighbors // 2 + 1) for step in (k, -k)}


@pytest.mark.parametrize("tries", [0, 2])
def test_a_graph_that_never_connects_is_an_error(monkeypatch, tries):
    monkeypatch.setattr(families, "_TRIES", tries)
    rule = f"none of {tries} draws was connected"
    refused(GraphError, f"{rule}.*raise neighbors or lower rewire", g.small_world, 1000, 2, 1.0)
    if tries == 0:
        refused(GraphError, f"{rule}; raise the degree", g.random_regular, 8, 3)


# --- errors of sizes and fractions ---
@pytest.mark.parametrize("n", [0, -1, 2.5, "4"])
def test_sizes_are_positive_whole_numbers(n):
    for family in (g.ring, g.chain, g.star, g.complete, g.exponential, g.one_peer_exponential, g.random_connected):
        refused(GraphError, r"n = .*; give a whole number of at least 1", family, n)


@cases(
    "call, message",
    (lambda: g.torus(0, 4), "rows = 0"),
    (lambda: g.grid(4, -2), "cols = -2"),
    (lambda: g.hypercube(-1), "dimension = -1; give a whole number of at least 0"),
    (lambda: g.ring(10**12), "n = 1000000000000; give a whole number of at most 5000000"),
    (lambda: g.random_regular(4, -2), "degree = -2"),
    *(
        (lambda n=n, k=k: g.random_regular(n, k), f"no connected graph of {n} nodes with {k} neighbors each")
        for n, k in [(5, 3), (4, 4), (4, 7), (4, 1), (2, 0), (3, 0)]
    ),
    (lambda: g.small_world(4, 0, 0.5), "neighbors = 0"),
    *(
        (lambda n=n, k=k: g.small_world(n, k, 0.1), f"neighbors = {k} with n = {n}; give an even number below")
        for n, k in [(20, 3), (4, 4), (4, 6)]
    ),
    *((lambda r=r: g.random_geometric(8, r), r"radius = .*finite") for r in (-1.0, np.inf, np.nan)),
    *((lambda s=s: g.random_connected(8, s), r"keep = .*from 0 to 1") for s in (-0.1, 1.5, np.nan)),
    *((lambda s=s: g.erdos_renyi(8, s), r"probability = .*from 0 to 1") for s in (-0.1, 1.5, np.nan)),
    *((lambda s=s: g.small_world(8, 4, s), r"rewire = .*from 0 to 1") for s in (-0.1, 1.5, np.nan)),
)
def test_an_argument_out_of_range_is_named(call, message):
    refused(GraphError, message, call)


def test_numpy_sizes_work_and_do_not_overflow():
    assert (g.ring(np.int32(5)), g.exponential(np.int8(100))) == (g.ring(5), g.exponential(100))
    assert g.erdos_renyi(np.int16(300), 0.1) == g.erdos_renyi(300, 0.1)


LARGE = [(g.complete, 10**6), (g.hypercube, 60), (g.hypercube, 10**6), (g.torus, 10**5, 10**5)]
LARGE += [(g.random_connected, 10**6), (g.random_regular, 10**6, 10**4), (g.erdos_renyi, 10**6, 0.5)]
LARGE += [(g.random_geometric, 10**6, 0.5), (g.small_world, 10**6, 10**4, 0.1)]


@pytest.mark.parametrize("call", LARGE)
def test_a_graph_too_large_for_memory_is_refused_at_once(call):
    refused(GraphError, r"edges, allowed are 5e.0[56]; use fewer nodes", *call)


# --- conversions ---
@given(graphs())
def test_conversions_undo_each_other(graph):
    assert g.from_edges(graph.edges, n=graph.n, directed=graph.directed) == graph
    converted = g.from_networkx(as_networkx(graph))
    assert (converted, converted.labels) == (graph, tuple(map(str, range(graph.n))))
    A = graph.adjacency.toarray()
    forms = [A, A.tolist(), A.astype(bool), graph.adjacency, sparse.coo_matrix(A)]
    for form in (*forms, torch.tensor(A), torch.tensor(A).bfloat16(), torch.tensor(A).to_sparse()):
        assert g.from_adjacency(form, directed=graph.directed) == graph


def test_from_edges_counts_the_nodes():
    assert g.from_edges([(0, 1), (1, 4)]) == Graph(5, [(0, 1), (1, 4)])
    assert g.from_edges(np.array([[0, 1], [1, 2]]), directed=True).directed
    assert g.from_edges(iter([(0, 1)]), n=3) == Graph(3, [(0, 1)])
    assert g.from_edges([], n=2) == Graph(2, [])


def test_from_networkx_keeps_the_order_and_the_names():
    named = nx.MultiGraph()
    named.add_nodes_from(["c", "a", ("b", 1), "alone"])
    named.add_edges_from([("a", "c"), ("c", "a"), ("a", "a"), ("a", ("b", 1))])
    graph = g.from_networkx(named)
    assert graph == Graph(4, [(0, 1), (1, 2)])
    assert graph.labels == ("c", "a", "('b', 1)", "alone")
    arcs = [(2, 0), (0, 1), (0, 1)]
    for directed in (nx.DiGraph(arcs), nx.MultiDiGraph(arcs)):
        assert g.from_networkx(directed) == Graph(3, [(0, 1), (1, 2)], directed=True)  # node 2 comes first, so it is 0


def test_from_adjacency_finds_the_direction():
    assert g.from_adjacency([[0, 1], [0, 0]]) == Graph(2, [(0, 1)], directed=True)  # entry (i, j): i sends to j
    assert g.from_adjacency([[5, -2], [0.3, 1]]) == Graph(2, [(0, 1)])  # weights and loops do not matter
    assert g.from_adjacency(np.ones((2, 2)), directed=True) == Graph(2, [(0, 1), (1, 0)], directed=True)


def test_from_adjacency_ignores_stored_zeros_and_leaves_its_argument_alone():
    A = sparse.csr_array((np.array([0.0, 1.0, 1.0]), ([0, 1, 2], [1, 2, 1])), shape=(3, 3))
    twice = sparse.coo_array((np.array([1.0, -1.0]), ([0, 0], [1, 1])), shape=(2, 2))
    assert (g.from_adjacency(A), g.from_adjacency(twice)) == (Graph(3, [(1, 2)]), Graph(2, []))
    assert (A.nnz, twice.nnz) == (3, 2)


PAIRS = "pairs of node numbers"


@cases(
    "convert, argument, message",
    (g.from_edges, [], "no edges and no n"),
    *((g.from_edges, broken, PAIRS) for broken in ([("a", "b")], [(0, 1), (1,)], [(0.5, 1.5)], [(0, 1, 2)])),
    (g.from_edges, [(-2, -1)], "outside"),
    (lambda edges: g.from_edges(edges, n=2), [(0, 3)], r"outside 0..1"),
    (g.from_networkx, [(0, 1)], "expected a networkx graph, got list; for pairs, use from_edges"),
    (g.from_networkx, nx.Graph(), "at least 1"),
    (g.from_adjacency, np.ones((2, 3)), r"square, got an array of shape \(2, 3\)"),
    *((g.from_adjacency, flat, "square") for flat in (np.ones(4), torch.ones(4), [1, 2], 3)),
    (g.from_adjacency, [[0, np.nan], [1, 0]], r"A\[0, 1\] = nan"),
    (g.from_adjacency, torch.tensor([[0, 1], [np.inf, 0]]), r"A\[1, 0\] = inf"),
    *((g.from_adjacency, wrong, "not an array of numbers") for wrong in ([["a"]], [[0, 1], [1]])),
    (lambda A: g.from_adjacency(A, directed=False), [[0, 1], [0, 0]], r"A\[0, 1\] and A\[1, 0\].*directed=True"),
)
def test_conversion_errors(convert, argument, message):
    refused(GraphError, message, convert, argument)
