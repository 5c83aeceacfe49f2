"""Every family has the degrees, the diameter and the randomness that its formula promises."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs import (
    Graph,
    chain,
    complete,
    directed_exponential,
    directed_ring,
    erdos_renyi,
    exponential,
    families,
    from_adjacency,
    from_edges,
    from_networkx,
    grid,
    hypercube,
    random_connected,
    random_geometric,
    random_regular,
    ring,
    small_world,
    social_network,
    star,
    torus,
)
from mixwise.seeding import numpy_generator
from strategies import graphs

SIZES = [1, 2, 3, 4, 5, 8, 13, 16]


def same_as(graph: Graph, g: nx.Graph) -> bool:
    return nx.utils.graphs_equal(
        nx.Graph(graph.edges), nx.Graph(nx.convert_node_labels_to_integers(g).edges())
    ) and graph.n == len(g)


# --- fixed families ---
@pytest.mark.parametrize("n", SIZES)
def test_ring(n):
    graph = ring(n)
    assert graph.n == n
    assert graph.is_connected
    assert graph.diameter == n // 2
    assert set(graph.degrees) == {min(2, n - 1)}  # a ring of 1 has no edge, a ring of 2 one


@pytest.mark.parametrize("n", SIZES)
def test_chain(n):
    graph = chain(n)
    assert (graph.n, len(graph.edges), graph.diameter) == (n, n - 1, n - 1)
    assert max(graph.degrees) == min(2, n - 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("cols", [1, 2, 3, 5, 6])
def test_torus(rows, cols):
    graph = torus(rows, cols)
    assert graph.n == rows * cols
    assert graph.diameter == rows // 2 + cols // 2
    assert set(graph.degrees) == {min(2, rows - 1) + min(2, cols - 1)}
    assert graph.n == 1 or same_as(graph, nx.cartesian_product(nx_ring(rows), nx_ring(cols)))


def nx_ring(n: int) -> nx.Graph:
    g = nx.Graph()
    g.add_nodes_from(range(n))
    g.add_edges_from((i, (i + 1) % n) for i in range(n) if n > 1)
    return g


def test_thin_tori_are_rings():
    assert torus(1, 5) == torus(5, 1) == ring(5)
    assert torus(1, 1) == ring(1)
    assert torus(2, 2).permuted([0, 1, 3, 2]) == ring(4)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 6), (6, 1), (2, 2), (3, 5), (4, 4)])
def test_grid(rows, cols):
    graph = grid(rows, cols)
    assert len(graph.edges) == rows * (cols - 1) + cols * (rows - 1)
    assert graph.diameter == rows + cols - 2
    assert graph.n == 1 or same_as(graph, nx.grid_2d_graph(rows, cols))


@pytest.mark.parametrize("n", SIZES)
def test_star(n):
    graph = star(n)
    assert graph.degrees == ((n - 1, *[1] * (n - 1)) if n > 1 else (0,))
    assert graph.diameter == min(2, n - 1)


@pytest.mark.parametrize("n", SIZES)
def test_complete(n):
    graph = complete(n)
    assert set(graph.degrees) == {n - 1}
    assert graph.diameter == min(1, n - 1)


@pytest.mark.parametrize("dimension", range(7))
def test_hypercube(dimension):
    graph = hypercube(dimension)
    assert graph.n == 2**dimension
    assert set(graph.degrees) == {dimension}
    assert graph.diameter == dimension
    assert all((i ^ j).bit_count() == 1 for i, j in graph.edges)


@pytest.mark.parametrize("n", [*SIZES, 31, 32, 33])
def test_exponential(n):
    graph = exponential(n)
    jumps = {step % n for k in range(n) if 2**k < n for step in (2**k, -(2**k))}
    assert set(graph.neighbors(0)) == jumps
    assert graph.is_regular
    assert graph.diameter <= np.ceil(np.log2(n))


def test_exponential_of_a_power_of_two_has_2_log_n_minus_1_neighbors():
    assert [exponential(2**k).degrees[0] for k in range(1, 8)] == [2 * k - 1 for k in range(1, 8)]


@pytest.mark.parametrize("n", SIZES)
def test_directed_ring(n):
    graph = directed_ring(n)
    assert graph.directed
    assert graph.edges == (tuple((i, (i + 1) % n) for i in range(n)) if n > 1 else ())
    assert graph.is_connected
    assert graph.diameter == n - 1


@pytest.mark.parametrize("n", [*SIZES, 31, 32, 33])
def test_directed_exponential(n):
    """Any distance is a sum of different powers of two below n, so ⌈log₂ n⌉ hops are enough."""
    graph = directed_exponential(n)
    hops = int(np.ceil(np.log2(n)))
    assert graph.directed
    assert set(graph.neighbors(0)) == {2**k for k in range(hops)}
    assert set(graph.degrees) == set(graph.in_degrees) == {hops}
    assert graph.diameter <= hops
    assert Graph(n, graph.edges) == exponential(n)  # without the directions


def test_social_network_joins_women_to_events():
    graph = social_network()
    assert (graph.n, len(graph.edges)) == (32, 89)
    assert graph.is_connected
    assert graph.labels[0] == "Evelyn Jefferson"
    assert graph.labels[18:] == tuple(f"E{k}" for k in range(1, 15))
    assert all(i < 18 <= j for i, j in graph.edges)


# --- random families ---
RANDOM = [
    lambda seed: random_connected(16, seed=seed),
    lambda seed: random_regular(16, 4, seed=seed),
    lambda seed: random_regular(16, 2, seed=seed),
    lambda seed: erdos_renyi(30, 0.2, seed=seed),
    lambda seed: random_geometric(30, 0.3, seed=seed),
    lambda seed: small_world(30, 4, 0.3, seed=seed),
]


@pytest.mark.parametrize("family", RANDOM)
def test_a_seed_names_one_graph(family):
    assert family(3) == family(3)
    assert len({family(seed) for seed in range(5)}) == 5


@pytest.mark.parametrize("family", RANDOM)
def test_no_draw_touches_the_global_generators(family):
    def states() -> tuple[bytes, str]:
        return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state())

    before = states()
    family(0)
    assert states() == before


@given(n=st.integers(1, 14), keep=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_random_connected_keeps_exactly_the_share_and_stays_connected(n, keep, seed):
    edges = round(keep * n * (n - 1) / 2)
    if edges < n - 1:
        with pytest.raises(GraphError, match="to be connected; keep at least"):
            random_connected(n, keep, seed)
    else:
        graph = random_connected(n, keep, seed)
        assert len(graph.edges) == edges
        assert graph.is_connected


@given(n=st.integers(2, 9), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_random_connected_is_what_removing_edge_by_edge_gives(n, share, seed):
    pairs = n * (n - 1) // 2
    target = round(n - 1 + share * (pairs - n + 1))
    tried = numpy_generator(seed, "random_connected").permutation(pairs)[::-1]
    g = nx.complete_graph(n)
    everything = list(g.edges)
    for e in tried:
        if g.number_of_edges() > target:
            g.remove_edge(*everything[e])
            if not nx.is_connected(g):
                g.add_edge(*everything[e])
    assert random_connected(n, target / pairs, seed) == from_networkx(g)


def test_random_connected_at_the_ends():
    assert random_connected(7, keep=1) == complete(7)
    assert random_connected(1) == Graph(1, [])
    assert len(random_connected(8, keep=2 / 8).edges) == 7  # a tree
    assert len(random_connected(16).edges) == 60  # the paper's: half of 120


@pytest.mark.parametrize(
    ("n", "degree"), [(1, 0), (2, 1), (3, 2), (8, 3), (9, 4), (16, 2), (16, 13), (16, 15), (60, 55)]
)
def test_random_regular(n, degree):
    graph = random_regular(n, degree, seed=1)
    assert set(graph.degrees) == {degree}
    assert graph.is_connected


@pytest.mark.parametrize(("n", "degree"), [(5, 3), (4, 4), (4, 7), (4, 1), (2, 0), (3, 0)])
def test_random_regular_that_cannot_be(n, degree):
    with pytest.raises(GraphError, match=f"no connected graph of {n} nodes with {degree} neighbors each; take"):
        random_regular(n, degree)


def test_random_regular_gives_up_with_an_error(monkeypatch):
    monkeypatch.setattr(families, "_TRIES", 0)
    with pytest.raises(GraphError, match="was connected at n = 8, degree = 3"):
        random_regular(8, 3)


@given(n=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_erdos_renyi_at_the_ends(n, seed):
    assert erdos_renyi(n, 0.0, seed) == Graph(n, [])
    assert erdos_renyi(n, 1.0, seed) == complete(n)


def test_erdos_renyi_gives_every_pair_its_probability():
    n, p, draws = 6, 0.3, 500
    counts = sum(erdos_renyi(n, p, seed).adjacency.toarray() for seed in range(draws))
    share = counts[np.triu_indices(n, k=1)] / draws
    # 15 shares with a deviation of √(p(1 − p)/draws) ≈ 0.0205 each: 5 of them are not reached by chance.
    assert np.abs(share - p).max() < 5 * np.sqrt(p * (1 - p) / draws)


def test_sparse_random_graphs_scale_to_100_000_nodes():
    n = 100_000
    graph = erdos_renyi(n, 4 / n)
    mean = 4 * (n - 1) / 2
    assert abs(len(graph.edge_array) - mean) < 6 * np.sqrt(mean)  # a Poisson count: its variance is its mean
    assert random_geometric(n, 0.002).n == n


def test_random_geometric_grows_with_the_radius():
    sizes = [set(random_geometric(40, radius, seed=2).edges) for radius in (0.0, 0.1, 0.3, 2**0.5)]
    assert sizes[0] == set()
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]
    assert sizes[3] == set(complete(40).edges)
    assert random_geometric(1, 0.5) == Graph(1, [])


@pytest.mark.parametrize(("n", "neighbors", "rewire"), [(3, 2, 0.5), (20, 4, 0.0), (20, 4, 0.1), (20, 6, 1.0)])
def test_small_world(n, neighbors, rewire):
    graph = small_world(n, neighbors, rewire)
    assert len(graph.edges) == n * neighbors // 2
    assert graph.is_connected
    if rewire == 0:
        near = {step % n for k in range(1, neighbors // 2 + 1) for step in (k, -k)}
        assert set(graph.neighbors(0)) == near


@pytest.mark.parametrize(("n", "neighbors"), [(20, 3), (4, 4), (4, 6)])
def test_small_world_needs_an_even_number_of_neighbors_below_n(n, neighbors):
    with pytest.raises(GraphError, match=f"neighbors = {neighbors} with n = {n}; give an even number below n"):
        small_world(n, neighbors, 0.1)


def test_small_world_that_never_connects(monkeypatch):
    monkeypatch.setattr(families, "_TRIES", 2)
    with pytest.raises(GraphError, match=r"no draw of 2 was connected.*raise neighbors or lower rewire"):
        small_world(1000, 2, 1.0)


# --- errors of sizes and shares ---
@pytest.mark.parametrize("family", [ring, chain, star, complete, exponential, random_connected])
@pytest.mark.parametrize("n", [0, -1, 2.5, "4"])
def test_sizes_are_positive_whole_numbers(family, n):
    with pytest.raises(GraphError, match=r"n = .*; give a whole number of at least 1"):
        family(n)


def test_the_wrong_size_is_named():
    with pytest.raises(GraphError, match="rows = 0"):
        torus(0, 4)
    with pytest.raises(GraphError, match="cols = -2"):
        grid(4, -2)
    with pytest.raises(GraphError, match="dimension = -1; give a whole number of at least 0"):
        hypercube(-1)
    with pytest.raises(GraphError, match="degree = -2"):
        random_regular(4, -2)
    with pytest.raises(GraphError, match="neighbors = 0"):
        small_world(4, 0, 0.5)


def test_numpy_sizes_work_and_do_not_overflow():
    assert ring(np.int32(5)) == ring(5)
    assert exponential(np.int8(100)) == exponential(100)
    assert erdos_renyi(np.int16(300), 0.1) == erdos_renyi(300, 0.1)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_shares_lie_between_0_and_1(share):
    with pytest.raises(GraphError, match=r"keep = .*from 0 to 1"):
        random_connected(8, share)
    with pytest.raises(GraphError, match=r"probability = .*from 0 to 1"):
        erdos_renyi(8, share)
    with pytest.raises(GraphError, match=r"rewire = .*from 0 to 1"):
        small_world(8, 4, share)


@pytest.mark.parametrize("radius", [-1.0, float("inf"), float("nan")])
def test_a_radius_is_finite(radius):
    with pytest.raises(GraphError, match=r"radius = .*finite"):
        random_geometric(8, radius)


@pytest.mark.parametrize(
    "build",
    [
        lambda: complete(10**6),
        lambda: hypercube(60),
        lambda: hypercube(10**7),
        lambda: torus(10**5, 10**5),
        lambda: random_connected(10**6),
        lambda: random_regular(10**6, 10**4),
        lambda: erdos_renyi(10**6, 0.5),
        lambda: random_geometric(10**6, 0.5),
        lambda: small_world(10**6, 10**4, 0.1),
    ],
)
def test_a_graph_too_large_for_memory_is_refused_at_once(build):
    with pytest.raises(GraphError, match=r"edges, allowed are 1e.08; take fewer nodes"):
        build()


def test_a_size_too_large_is_refused_at_once():
    with pytest.raises(GraphError, match="n = 1000000000000 is too large"):
        ring(10**12)


# --- from other forms ---
@given(graphs())
def test_from_edges_and_from_networkx_undo_each_other(graph):
    assert from_edges(graph.edges, n=graph.n, directed=graph.directed) == graph
    g = nx.DiGraph() if graph.directed else nx.Graph()
    g.add_nodes_from(range(graph.n))
    g.add_edges_from(graph.edges)
    assert from_networkx(g) == graph
    assert from_networkx(g).labels == tuple(map(str, range(graph.n)))


def test_from_edges_counts_the_nodes_if_not_told():
    assert from_edges([(0, 1), (1, 4)]) == Graph(5, [(0, 1), (1, 4)])
    assert from_edges(np.array([[0, 1], [1, 2]]), directed=True).directed
    assert from_edges(iter([(0, 1)]), n=3) == Graph(3, [(0, 1)])
    assert from_edges([], n=2) == Graph(2, [])


def test_from_edges_errors():
    with pytest.raises(GraphError, match="no edges and no n"):
        from_edges([])
    for broken in ([("a", "b")], [(0, 1), (1,)], [(0.5, 1.5)], [(0, 1, 2)]):
        with pytest.raises(GraphError, match="pairs of node numbers"):
            from_edges(broken)
    with pytest.raises(GraphError, match="outside"):
        from_edges([(-2, -1)])
    with pytest.raises(GraphError, match=r"outside 0..1"):
        from_edges([(0, 3)], n=2)


def test_from_networkx_keeps_the_order_and_the_names():
    g = nx.MultiGraph()
    g.add_nodes_from(["c", "a", ("b", 1), "alone"])
    g.add_edges_from([("a", "c"), ("c", "a"), ("a", "a"), ("a", ("b", 1))])
    graph = from_networkx(g)
    assert graph == Graph(4, [(0, 1), (1, 2)])
    assert graph.labels == ("c", "a", "('b', 1)", "alone")


def test_from_networkx_directed():
    arcs = [(2, 0), (0, 1), (0, 1)]
    for g in (nx.DiGraph(arcs), nx.MultiDiGraph(arcs)):
        assert from_networkx(g) == Graph(3, [(0, 1), (1, 2)], directed=True)  # node 2 comes first, so it is 0


def test_from_networkx_errors():
    with pytest.raises(GraphError, match="expected a networkx graph, got list; for pairs, use from_edges"):
        from_networkx([(0, 1)])
    with pytest.raises(GraphError, match="at least 1"):
        from_networkx(nx.Graph())


@given(graphs())
def test_from_adjacency_undoes_adjacency(graph):
    A = graph.adjacency.toarray()
    for form in (A, A.astype(bool), graph.adjacency, torch.tensor(A).to_sparse()):
        assert from_adjacency(form, directed=graph.directed) == graph


@pytest.mark.parametrize(
    "form", [np.asarray, np.ndarray.tolist, sparse.coo_matrix, torch.tensor, lambda A: torch.tensor(A).bfloat16()]
)
def test_from_adjacency_takes_lists_arrays_and_tensors(form):
    assert from_adjacency(form(torus(3, 4).adjacency.toarray())) == torus(3, 4)


def test_from_adjacency_finds_the_direction():
    assert from_adjacency([[0, 1], [0, 0]]) == Graph(2, [(0, 1)], directed=True)  # entry (i, j): i sends to j
    assert from_adjacency([[5, -2], [0.3, 1]]) == Graph(2, [(0, 1)])  # weights and loops do not matter
    assert from_adjacency(np.ones((2, 2)), directed=True) == Graph(2, [(0, 1), (1, 0)], directed=True)


def test_from_adjacency_does_not_read_stored_zeros_nor_change_its_argument():
    A = sparse.csr_array((np.array([0.0, 1.0, 1.0]), ([0, 1, 2], [1, 2, 1])), shape=(3, 3))
    assert from_adjacency(A) == Graph(3, [(1, 2)])
    assert A.nnz == 3
    twice = sparse.coo_array((np.array([1.0, -1.0]), ([0, 0], [1, 1])), shape=(2, 2))
    assert from_adjacency(twice) == Graph(2, [])
    assert twice.nnz == 2


def test_from_adjacency_errors():
    with pytest.raises(GraphError, match=r"square, got an array of shape \(2, 3\)"):
        from_adjacency(np.ones((2, 3)))
    for flat in (np.ones(4), torch.ones(4), [1, 2], 3):
        with pytest.raises(GraphError, match="square"):
            from_adjacency(flat)
    with pytest.raises(GraphError, match=r"A\[0, 1\] = nan"):
        from_adjacency([[0, float("nan")], [1, 0]])
    with pytest.raises(GraphError, match=r"A\[1, 0\] = inf"):
        from_adjacency(torch.tensor([[0, 1], [float("inf"), 0]]))
    for wrong in ([["a"]], [[0, 1], [1]]):
        with pytest.raises(GraphError, match="not an array of numbers"):
            from_adjacency(wrong)
    with pytest.raises(GraphError, match=r"A\[0, 1\] and A\[1, 0\].*directed=True"):
        from_adjacency([[0, 1], [0, 0]], directed=False)
