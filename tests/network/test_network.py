"""A network moves rows: mixing is Wᵀ X, keeps the mean, and costs the bytes of the rows that travel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, ring, torus
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork, Traffic
from strategies import connected_graphs

property_test = settings(max_examples=50)


def asymmetric(n: int, seed: int = 0) -> MixingMatrix:
    """A mixture of the identity, a one-way ring and a permutation."""
    rng = np.random.default_rng(seed)
    P = np.eye(n)[rng.permutation(n)]
    return MixingMatrix.from_dense(0.5 * np.eye(n) + 0.3 * np.roll(np.eye(n), 1, axis=1) + 0.2 * P, complete(n))


def rows(n: int, d: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- mixing ---
@pytest.mark.parametrize("n", [1, 2, 16, 63, 64, 65, 66, 150])  # up to 64 a dense product, above a sparse one
@pytest.mark.parametrize("d", [1, 7, 1000])
def test_mixing_is_w_transposed_times_x(n, d):
    W, X = asymmetric(n), rows(n, d)
    before = X.clone()
    mixed = SimulatedNetwork(W.graph).mix(X, W)
    np.testing.assert_allclose(mixed.numpy(), W.to_dense().T @ X.numpy(), rtol=0, atol=1e-13)
    assert torch.equal(X, before)  # the rows that were given are as they were
    assert mixed.data_ptr() != X.data_ptr()


@pytest.mark.parametrize("n", [8, 80])
def test_what_node_i_sends_arrives_at_j_with_weight_w_ij(n):
    W = asymmetric(n)
    for i in (0, 3):
        signal = torch.zeros(n, 1, dtype=torch.float64)
        signal[i] = 1
        arrived = SimulatedNetwork(W.graph).mix(signal, W)[:, 0]
        np.testing.assert_array_equal(arrived.numpy(), W.to_dense()[i])


@property_test
@given(graph=connected_graphs(1, 12), seed=st.integers(0, 2**32 - 1))
def test_doubly_stochastic_weights_keep_the_mean_and_bring_the_rows_together(graph, seed):
    X = rows(graph.n, 5, seed)
    W = minimize_gme((X @ X.T).numpy(), graph).W
    mixed = SimulatedNetwork(graph).mix(X, W)
    torch.testing.assert_close(mixed.mean(0), X.mean(0), rtol=0, atol=1e-8)  # sums of W are 1 within 1e-9
    assert float((mixed - mixed.mean(0)).norm()) <= float((X - X.mean(0)).norm()) * (1 + 1e-8)
    assert (mixed.amax(0) <= X.amax(0) + 1e-8).all()
    assert (mixed.amin(0) >= X.amin(0) - 1e-8).all()


@pytest.mark.parametrize("n", [6, 70])
def test_full_averaging_and_no_mixing(n):
    X = rows(n, 3)
    network = SimulatedNetwork(complete(n))
    averaged = network.mix(X, uniform(complete(n)))
    torch.testing.assert_close(averaged, X.mean(0).expand(n, -1), rtol=0, atol=1e-14)
    alone = MixingMatrix.from_dense(np.eye(n), complete(n))
    assert torch.equal(network.mix(X, alone), X)


@pytest.mark.parametrize("n", [10, 90])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_rows_keep_their_dtype(n, dtype, error):
    W, X = metropolis_hastings(ring(n)), rows(n, 4, dtype=dtype)
    mixed = SimulatedNetwork(ring(n)).mix(X, W)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), torch.from_numpy(W.to_dense().T) @ X.double(), rtol=0, atol=error * 5)


def test_many_nodes():
    n = 20_000
    W, X = metropolis_hastings(ring(n)), torch.arange(n, dtype=torch.float64)[:, None]
    mixed = SimulatedNetwork(ring(n)).mix(X, W)
    torch.testing.assert_close(mixed[1:-1], X[1:-1])  # the mean of x − 1, x and x + 1
    assert float(mixed.mean()) == pytest.approx(float(X.mean()))


def test_columns_that_are_not_contiguous():
    X = rows(7, 12)
    W = asymmetric(7)
    expected = SimulatedNetwork(W.graph).mix(X[:, ::3].contiguous(), W)
    torch.testing.assert_close(SimulatedNetwork(W.graph).mix(X[:, ::3], W), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("shape", [(5, 3), (4,), (2, 2, 2)])
def test_rows_that_do_not_fit_are_refused(shape):
    message = rf"rows of shape \({', '.join(map(str, shape))},?\) cannot be mixed by a matrix for 4 nodes"
    with pytest.raises(MixingError, match=message):
        SimulatedNetwork(ring(4)).mix(torch.zeros(shape), metropolis_hastings(ring(4)))


# --- what it costs ---
def test_only_weights_that_are_not_zero_cost_bytes():
    """A row of d numbers of 4 or 8 bytes along every arc in use; a node's own row costs nothing."""
    network = SimulatedNetwork(ring(6))
    assert network.traffic == Traffic(0, 0)
    network.mix(torch.zeros(6, 10, dtype=torch.float64), metropolis_hastings(ring(6)))
    assert network.traffic.parameters == 12 * 10 * 8
    network.mix(torch.zeros(6, 10, dtype=torch.float32), metropolis_hastings(ring(6)))
    assert network.traffic.parameters == 12 * 10 * 8 + 12 * 10 * 4
    pairs = clique_averaging([(0, 1), (2, 3), (4, 5)], ring(6))  # half of the edges rest
    network.mix(torch.zeros(6, 1, dtype=torch.float64), pairs)
    assert network.traffic.parameters == 12 * 10 * 12 + 6 * 8
    network.mix(torch.zeros(6, 5), MixingMatrix.from_dense(np.eye(6), ring(6)))
    assert network.traffic.parameters == 12 * 10 * 12 + 6 * 8
    assert network.traffic.sketches == 0


@pytest.mark.parametrize("n", [12, 100])
def test_one_way_arcs_cost_one_way(n):
    one_way = Graph(n, [(i, (i + 1) % n) for i in range(n)], directed=True)
    network = SimulatedNetwork(one_way)
    network.mix(torch.zeros(n, 3), uniform(one_way))
    assert network.traffic.parameters == n * 3 * 4


def test_gather_returns_all_rows_and_counts_an_all_gather():
    network = SimulatedNetwork(torus(3, 3))
    S = rows(9, 5, dtype=torch.float32)
    assert torch.equal(network.gather(S), S)
    assert network.traffic == Traffic(parameters=0, sketches=9 * 8 * 5 * 4)  # each row reaches 8 nodes
    network.gather(S.double())
    assert network.traffic.sketches == 9 * 8 * 5 * 12


def test_a_network_knows_its_nodes():
    network = SimulatedNetwork(chain(5))
    assert network.graph == chain(5)
    assert list(network.nodes) == [0, 1, 2, 3, 4]
    assert SimulatedNetwork(chain(5)).traffic is not network.traffic
