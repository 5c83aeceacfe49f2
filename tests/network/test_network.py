"""A network moves rows: mixing is Wᵀ X, keeps the mean, and costs the bytes of the rows that travel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import asymmetric, random_rows, refused
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, ring, torus
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork, Traffic
from strategies import connected_graphs


# --- mixing ---
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 7), (16, 1000), (65, 7), (150, 1)])
def test_mixing_is_w_transposed_times_x(n, d, dtype, error):
    W, X = asymmetric(n), random_rows(n, d, dtype=dtype)
    before = X.clone()
    mixed = SimulatedNetwork(W.graph).mix(X, W)
    expected = torch.from_numpy(W.to_dense().T) @ X.double()
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=error)
    assert torch.equal(X, before)
    assert mixed.data_ptr() != X.data_ptr()


def test_the_row_of_node_i_arrives_at_j_with_weight_w_ij():
    W = asymmetric(8)
    arrived = SimulatedNetwork(W.graph).mix(torch.eye(8, dtype=torch.float64), W)
    np.testing.assert_array_equal(arrived.numpy().T, W.to_dense())


@settings(max_examples=50)
@given(graph=connected_graphs(1, 12), seed=st.integers(0, 2**32 - 1))
def test_doubly_stochastic_weights_keep_the_mean_and_bring_the_rows_together(graph, seed):
    X = random_rows(graph.n, 5, seed)
    W = minimize_gme((X @ X.T).numpy(), graph).W
    mixed = SimulatedNetwork(graph).mix(X, W)
    torch.testing.assert_close(mixed.mean(0), X.mean(0), rtol=0, atol=1e-8)  # sums of W are 1 within 1e-9
    assert float((mixed - mixed.mean(0)).norm()) <= float((X - X.mean(0)).norm()) * (1 + 1e-8)
    assert (mixed.amax(0) <= X.amax(0) + 1e-8).all()
    assert (mixed.amin(0) >= X.amin(0) - 1e-8).all()


@pytest.mark.parametrize("n", [6, 70])
def test_full_averaging_and_no_mixing(n):
    X, network = random_rows(n, 3), SimulatedNetwork(complete(n))
    averaged = network.mix(X, uniform(complete(n)))
    torch.testing.assert_close(averaged, X.mean(0).expand(n, -1), rtol=0, atol=1e-14)
    assert torch.equal(network.mix(X, MixingMatrix.from_dense(np.eye(n), complete(n))), X)


def test_many_nodes():
    n = 20_000
    W, X = metropolis_hastings(ring(n)), torch.arange(n, dtype=torch.float64)[:, None]
    mixed = SimulatedNetwork(ring(n)).mix(X, W)
    torch.testing.assert_close(mixed[1:-1], X[1:-1])  # the mean of x − 1, x and x + 1
    assert float(mixed.mean()) == pytest.approx(float(X.mean()))


def test_columns_that_are_not_contiguous():
    X, W = random_rows(7, 12), asymmetric(7)
    expected = SimulatedNetwork(W.graph).mix(X[:, ::3].contiguous(), W)
    torch.testing.assert_close(SimulatedNetwork(W.graph).mix(X[:, ::3], W), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("shape", [(5, 3), (4,), (2, 2, 2)])
def test_rows_that_do_not_fit_are_refused(shape):
    message = rf"rows of shape \({', '.join(map(str, shape))},?\) cannot be mixed by a matrix for 4 nodes"
    refused(MixingError, message, SimulatedNetwork(ring(4)).mix, torch.zeros(shape), metropolis_hastings(ring(4)))


# --- traffic ---
HALF = clique_averaging([(0, 1), (2, 3), (4, 5)], ring(6))  # half of the edges have no weight
ONE_WAY = Graph(6, [(i, (i + 1) % 6) for i in range(6)], directed=True)


@pytest.mark.parametrize(
    ("W", "messages"),
    [
        (metropolis_hastings(ring(6)), 12),
        (HALF, 6),
        (MixingMatrix.from_dense(np.eye(6), ring(6)), 0),
        (uniform(ONE_WAY), 6),
    ],
)
def test_only_weights_that_are_not_zero_cost_bytes(W, messages):
    """A row of d numbers of 4 or 8 bytes along every arc in use; a node's own row costs nothing."""
    network = SimulatedNetwork(W.graph)
    network.mix(torch.zeros(6, 10, dtype=torch.float64), W)
    assert network.traffic == Traffic(messages * 10 * 8)
    network.mix(torch.zeros(6, 10, dtype=torch.float32), W)
    assert network.traffic == Traffic(messages * 10 * 12)


def test_gather_returns_all_rows_and_counts_an_all_gather():
    network = SimulatedNetwork(torus(3, 3))
    S = random_rows(9, 5, dtype=torch.float32)
    assert torch.equal(network.gather(S), S)
    assert network.traffic == Traffic(parameters=0, sketches=9 * 8 * 5 * 4)  # each row reaches 8 nodes
    network.gather(S.double())
    assert network.traffic.sketches == 9 * 8 * 5 * 12


def test_a_network_knows_its_nodes_and_counts_its_own_traffic():
    network = SimulatedNetwork(chain(5))
    assert (network.graph, list(network.nodes)) == (chain(5), [0, 1, 2, 3, 4])
    assert SimulatedNetwork(chain(5)).traffic is not network.traffic
