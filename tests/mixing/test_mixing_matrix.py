"""A mixing matrix is a checked value: what cannot be one is refused by name, and what is one cannot be changed."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixwise.mixing as m
from builders import ONE_WAY_RING, asymmetric, cases, normal_rows, peak_memory, refused
from mixwise.errors import GraphError, MixingError
from mixwise.graphs import Graph, chain, complete, ring, torus
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings, symmetrized
from mixwise.plan import Plan
from strategies import connected_graphs, graphs

RING = ring(4)


@st.composite
def matrices(draw) -> MixingMatrix:
    """Asymmetric in general: a mixture of permutations on a graph, or each sender's own shares on any graph."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        graph = draw(graphs(1, 9))
        W = np.zeros((graph.n, graph.n))
        W[graph.pattern.rows, graph.pattern.cols] = rng.random(len(graph.pattern.rows))
        return MixingMatrix.from_dense(W / W.sum(axis=1, keepdims=True), graph, kind="sender")
    return asymmetric(draw(st.integers(1, 9)), seed=draw(st.integers(0, 100)))


# --- its forms ---
@given(W=matrices())
def test_all_forms_are_the_same_matrix(W):
    dense = W.to_dense()
    np.testing.assert_array_equal(W.sparse.toarray(), dense)
    np.testing.assert_array_equal(W.incoming.toarray(), dense.T)
    np.testing.assert_array_equal(np.asarray(W), dense)
    assert (np.asarray(W).dtype, np.asarray(W, dtype=np.float32).dtype) == (np.float64, np.float32)
    np.testing.assert_array_equal([[W[i, j] for j in range(W.n)] for i in range(W.n)], dense)
    for j in range(W.n):  # in ascending order, so that neighbors are summed in the same order in every process
        senders = W.incoming.indices[W.incoming.indptr[j] : W.incoming.indptr[j + 1]]
        assert senders.tolist() == sorted({*W.graph.in_neighbors(j), j})
    off_diagonal = {(i, j): dense[i, j] for i, j in np.argwhere(dense) if i != j}
    assert (dict(W.edge_weights), W.messages) == (off_diagonal, len(off_diagonal))
    assert W.is_symmetric == bool((dense == dense.T).all())


@given(W=matrices())
def test_from_dense_gives_it_back(W):
    assert MixingMatrix.from_dense(W.to_dense(), W.graph, W.kind) == W
    again = MixingMatrix.from_dense(W.to_dense(), kind=W.kind)  # on the graph of its non-zero entries
    np.testing.assert_array_equal(again.to_dense(), W.to_dense())
    arcs = {(int(i), int(j)) for i, j in np.argwhere(W.to_dense()) if i != j}
    assert again.graph.directed == any((j, i) not in arcs for i, j in arcs)


def test_zeros_on_the_graph_are_kept_but_send_nothing():
    W = MixingMatrix.from_dense(np.eye(4), RING)
    assert (W.graph, W.sparse.nnz) == (RING, 12)
    assert (W.messages, dict(W.edge_weights)) == (0, {})
    assert MixingMatrix.from_dense(np.eye(4)).graph == Graph(4, [])


def test_weights_stand_in_the_order_of_the_pattern():
    W = MixingMatrix(ONE_WAY_RING, [0.7, 0.3, 0.7, 0.3, 0.3, 0.7])  # (0,0) (0,1) (1,1) (1,2) (2,0) (2,2)
    np.testing.assert_allclose(W.to_dense(), [[0.7, 0.3, 0], [0, 0.7, 0.3], [0.3, 0, 0.7]])
    assert W[0, 1] == 0.3  # what node 1 gives to what arrives from node 0
    assert W[1, 0] == 0


@given(W=matrices(), data=st.data())
def test_permuted_puts_node_order_a_in_the_place_of_node_a(W, data):
    order = data.draw(st.permutations(range(W.n)))
    moved = W.permuted(order)
    np.testing.assert_array_equal(moved.to_dense()[np.ix_(order, order)], W.to_dense())
    assert (moved.graph, moved.kind) == (W.graph.permuted(order), W.kind)
    assert moved.permuted(np.argsort(order)) == W
    refused(GraphError, r"is not a permutation of the nodes 0\.\.", W.permuted, [0, *order])


# --- value semantics ---
def test_equal_if_kind_graph_and_weights_are():
    W = metropolis_hastings(RING)
    assert metropolis_hastings(Graph(4, [(1, 0), (2, 1), (3, 2), (0, 3)])) == W
    assert hash(W) == hash(metropolis_hastings(ring(4)))
    assert len({W, metropolis_hastings(ring(4)), lazy(W)}) == 2
    assert lazy(W) != W
    assert repr(metropolis_hastings(ring(5))) == "MixingMatrix(n=5, 10 messages per step, kind='doubly')"
    assert MixingMatrix(RING, W.weights, kind="sender") != W
    assert MixingMatrix.from_dense(W.to_dense(), complete(4)) != W
    assert W.to_dense().tolist() != W
    assert MixingMatrix(chain(2), [1, 0.0, 0.0, 1]) == MixingMatrix(chain(2), [1, -0.0, 0.0, 1])


def test_nothing_can_be_changed():
    given_weights = np.full(12, 1 / 3)
    W = MixingMatrix(RING, given_weights)
    given_weights[:] = 0
    before = W.to_dense()
    for array in (W.weights, W.sparse.data, W.incoming.data):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.9
    for name in ("weights", "graph", "kind", "n"):
        refused(AttributeError, name, setattr, W, name, None)
    with pytest.raises(TypeError):
        W.edge_weights[0, 1] = 0.9
    W.to_dense()[:] = 7
    np.asarray(W)[:] = 7
    np.testing.assert_array_equal(W.to_dense(), before)
    np.testing.assert_allclose(before.sum(axis=0), 1)


def test_a_tolerance_given_once_holds_for_what_is_made_of_it():
    W = MixingMatrix.from_dense(np.array([[0.5, 0.5004], [0.5004, 0.5]]), tolerance=1e-3)
    again = pickle.loads(pickle.dumps(W))
    assert (again, hash(again), again.weights.flags.writeable) == (W, hash(W), False)
    for made in (again, W.permuted([1, 0]), lazy(W), symmetrized(W)):
        assert abs(made.to_dense().sum(axis=0) - 1).max() == pytest.approx(4e-4, rel=0.6)


# --- validation ---
THIRDS = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4


def changed(*changes: tuple[int, int, float]) -> np.ndarray:
    W = THIRDS.copy()
    for i, j, value in changes:
        W[i, j] = value
    return W


# Rows and columns sum to 1, and no weight is above 1.
NEGATIVE = THIRDS + 0.35 * np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@cases(
    "W, message",
    (changed((3, 2, 0.18)), r"row 3 of W sums to 0\.93, expected 1 within 1e-06 \(its largest entry is W\[3, 3\]"),
    (changed((3, 2, 0.18)), "; a loop takes what is left of its row: from_edge_weights"),
    (changed((2, 1, 0.5), (2, 3, 0.0)), r"column [13] of W sums to (1\.25|0\.75), expected 1 within 1e-06"),
    (changed((2, 1, 0.5), (2, 3, 0.0)), '; use symmetric weights, or kind="sender" if only rows should sum to 1'),
    (changed((1, 0, -0.25), (1, 1, 1.0)), r"W\[1, 0\] = -0\.25; weights lie between 0 and 1; clip them"),
    (NEGATIVE, r"W\[0, 1\] = -0\.1; weights lie between 0 and 1"),
    (changed((1, 0, np.nan)), r"W\[1, 0\] = nan; weights lie between 0 and 1"),
    (changed((0, 0, 1.5)), r"W\[0, 0\] = 1\.5; weights lie between 0 and 1; .*metropolis_hastings\(graph\)"),
    (changed((0, 2, 0.1)), r"W\[0, 2\] = 0\.1, but node 0 has no edge to node 2; set the entry to 0 or add"),
    (np.ones((4, 3)) / 4, r"a mixing matrix is square, got an array of shape \(4, 3\)"),
    (np.eye(3), r"W is 3 × 3, but the graph has 4 nodes"),
)
def test_refusals_name_the_place_the_value_and_the_remedy(W, message):
    refused(MixingError, message, MixingMatrix.from_dense, W, RING)


@given(graph=connected_graphs(2, 9), data=st.data())
def test_the_row_that_is_named_is_the_row_that_is_wrong(graph, data):
    i = data.draw(st.integers(0, graph.n - 1))
    W = metropolis_hastings(graph).to_dense()
    W[i] *= 0.7
    refused(MixingError, rf"row {i} of W sums to 0\.7, expected 1", MixingMatrix.from_dense, W, graph)
    refused(MixingError, rf"row {i} of W sums to 0\.7, expected 1", MixingMatrix.from_dense, W, graph, kind="sender")
    refused(MixingError, rf"column {i} of W sums to 0\.7, expected 1|row . of W", MixingMatrix.from_dense, W.T, graph)


def pair(error):
    return [[0.5 + error, 0.5], [0.5, 0.5]]


def test_sums_may_be_off_by_the_tolerance_and_no_more():
    make = MixingMatrix.from_dense
    for error, options in ((0.9e-6, {}), (-0.9e-6, {}), (0.05, {"tolerance": 0.1})):
        assert make(pair(error), **options).n == 2
    refused(MixingError, r"row 0 of W sums to 1\.0000011, expected 1 within 1e-06", make, pair(1.1e-6))
    refused(MixingError, "expected 1 within 1e-12", make, pair(1e-9), tolerance=1e-12)


@pytest.mark.parametrize("weights", [np.ones(4), np.full((12, 1), 1 / 3)])
def test_one_weight_per_entry(weights):
    rule = r"weights for 12 entries; give one per entry of graph\.pattern, or .*: MixingMatrix\.from_dense\(W, graph\)"
    refused(MixingError, rule, MixingMatrix, RING, weights)


def test_sender_kind_needs_row_sums_only():
    """Each node splits what it sends; what arrives need not sum to 1 (push-sum)."""
    rows = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]])
    arcs = Graph(3, [(0, 1), (1, 2)], directed=True)
    W = MixingMatrix.from_dense(rows, arcs, kind="sender")
    assert W.kind == "sender"
    np.testing.assert_array_equal(W.to_dense(), rows)
    refused(MixingError, r"column [02] of W sums to (0\.5|1\.5)", MixingMatrix.from_dense, rows, arcs)
    refused(MixingError, r"row [02] of W sums to (0\.5|1\.5)", MixingMatrix.from_dense, rows.T, kind="sender")
    rule = "kind = 'receiver'; a mixing matrix is .doubly. or .sender. stochastic"
    refused(MixingError, rule, MixingMatrix.from_dense, rows, arcs, kind="receiver")


# --- rows and columns of some nodes ---
def optimized(n: int = 8) -> MixingMatrix:
    G = normal_rows(n, 3)
    return m.minimize_gme(G @ G.T, ring(n)).W


def test_rows_and_columns_of_the_known_nodes_are_checked_and_no_others():
    W, nodes = optimized(), range(2, 5)
    known = W.restricted_to(nodes)
    for touched in (2, 5):  # a weight that node 2 or node 4 sends or hears: its row, or its column, is wrong now
        weights = known.weights.copy()
        weights[(known.graph.pattern.rows == touched) & (known.graph.pattern.cols == touched - 1)] += 0.1
        wrong = "row 2" if touched == 2 else "column 4"
        refused(MixingError, f"{wrong} of W sums to", MixingMatrix, W.graph, weights, nodes=nodes)
    rule = r"W\[0, 0\] = .*, but only the weights of nodes 2 to 4 are known here"
    refused(MixingError, rule, MixingMatrix, W.graph, W.weights, nodes=nodes)
    for nodes in (range(0), range(3, 9), range(0, 8, 2)):
        rule = r"the known nodes are a range of one or more of 0\.\.7"
        refused(MixingError, rule, MixingMatrix, W.graph, np.zeros_like(W.weights), nodes=nodes)


@given(W=matrices(), data=st.data())
def test_a_part_holds_the_rows_and_columns_of_its_nodes(W, data):
    start = data.draw(st.integers(0, W.n - 1))
    stop = data.draw(st.integers(start + 1, W.n))
    known, own = W.restricted_to(range(start, stop)), (np.arange(W.n) >= start) & (np.arange(W.n) < stop)
    np.testing.assert_array_equal(known.to_dense(), np.where(own[:, None] | own, W.to_dense(), 0))
    assert known.whole == (stop - start == W.n)


MANY = metropolis_hastings(torus(10, 10))
NEED_ALL = [m.consensus_factor, m.spectral_gap, m.eigenvalues, lambda W: W.permuted(range(8))]
NEED_ALL += [lambda W: Plan((W,)).params_product, lambda W: m.gradient_mixing_error(np.ones((8, 2)), W)]
NEED_ALL += [lambda W: m.gradient_mixing_error(np.ones((100, 2)), MANY.restricted_to(W.nodes))]


@pytest.mark.parametrize("ask", NEED_ALL)
def test_quantities_that_need_all_weights_say_so(ask):
    with pytest.raises(MixingError, match=r"needs all weights, but only those of nodes 2 to 4 of .* are known here"):
        ask(optimized().restricted_to(range(2, 5)))


def test_a_part_is_a_value_too():
    W, nodes = optimized(), range(2, 5)
    known = W.restricted_to(nodes)
    assert known == W.restricted_to(nodes)
    assert known != W.restricted_to(range(2, 6))
    assert pickle.loads(pickle.dumps(known)) == known
    assert repr(known).endswith("kind='doubly', nodes 2 to 4 known)")
    for change in (lazy, symmetrized):
        assert change(known) == change(W).restricted_to(nodes)


# --- large ---
def test_many_nodes_need_no_square_array():
    """One array of n × n numbers would take 3.2 GB; all of this takes some MB."""

    def work():
        W = metropolis_hastings(ring(20_000))
        assert W.weights == pytest.approx(1 / 3)
        x = np.arange(W.n, dtype=np.float64)
        mixed = W.sparse.T @ x
        np.testing.assert_allclose(mixed[1:-1], x[1:-1])  # (x − 1 + x + x + 1) / 3
        np.testing.assert_array_equal(W.incoming @ x, mixed)
        assert W.messages == 40_000
        assert W.is_symmetric
        assert W.permuted(np.roll(np.arange(W.n), 1)) == W  # up to the place where it starts, a ring is a ring
        assert len({W, lazy(W), W.permuted(range(W.n))}) == 2

    assert peak_memory(work)[1] < 60e6


@pytest.mark.parametrize("tolerance", [np.inf, np.nan, -1e-9, 0.5])
def test_a_tolerance_that_would_accept_anything_is_refused(tolerance):
    fifteen = np.full((4, 4), 3.75)
    rule = rf"tolerance = {tolerance}; how far from 1 a sum may be lies in \[0, 0\.1\]"
    refused(MixingError, rule, MixingMatrix.from_dense, fifteen, tolerance=tolerance)


def test_weights_that_are_no_real_numbers_are_refused():
    rule = "weights is an array of <U1; pass an array or a tensor of real numbers"
    refused(MixingError, rule, MixingMatrix, RING, np.full(12, "a"))
    refused(MixingError, "W is an array of complex128", MixingMatrix.from_dense, np.eye(4) * 1j)
