"""A simulated network: mixing is Wᵀ X and costs the bytes of the rows that travel, and their time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import as_networkx, asymmetric, cases, random_rows, refused
from mixwise.algorithms import TopK
from mixwise.errors import ConfigError, GraphError, MixingError, NetworkError
from mixwise.experiments.build import prepare
from mixwise.graphs import Graph, complete, ring, torus
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings, minimize_gme, uniform
from mixwise.network import Faults, FaultyNetwork, Link, Links, SimulatedNetwork, Traffic
from mixwise.network.guarded import GuardedNetwork
from run_folders import recipe_run
from strategies import connected_graphs

# --- mixing ---
MATRICES = [asymmetric(1), asymmetric(2), asymmetric(16), asymmetric(65), asymmetric(150)]
MATRICES += [uniform(complete(6)), uniform(complete(70)), MixingMatrix.from_dense(np.eye(6), complete(6))]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("stride", [1, 3], ids=["contiguous", "strided"])
@pytest.mark.parametrize("W", MATRICES, ids=str)
def test_mixing_is_w_transposed_times_x(W, stride, dtype, error):
    X = random_rows(W.n, 1000 // W.n * stride, dtype=dtype)[:, ::stride]
    before = X.clone()
    mixed = SimulatedNetwork(W.graph).mix(X, W)
    expected = torch.from_numpy(W.to_dense().T) @ X.double()
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=error)
    assert torch.equal(X, before)
    assert mixed.data_ptr() != X.data_ptr()
    moved = torch.full_like(X, 3.0)
    SimulatedNetwork(W.graph).start_mix(X, W).move(moved)
    torch.testing.assert_close(moved.double(), 3 + expected - before.double(), rtol=0, atol=error)


@given(graph=connected_graphs(1, 12), seed=st.integers(0, 2**32 - 1))
def test_doubly_stochastic_weights_keep_the_mean_and_bring_the_rows_together(graph, seed):
    X = random_rows(graph.n, 5, seed)
    W = minimize_gme((X @ X.T).numpy(), graph).W
    mixed = SimulatedNetwork(graph).mix(X, W)
    torch.testing.assert_close(mixed.mean(0), X.mean(0), rtol=0, atol=1e-8)  # sums of W are 1 within 1e-9
    assert float((mixed - mixed.mean(0)).norm()) <= float((X - X.mean(0)).norm()) * (1 + 1e-8)
    assert (mixed.amax(0) <= X.amax(0) + 1e-8).all()
    assert (mixed.amin(0) >= X.amin(0) - 1e-8).all()


@pytest.mark.parametrize("shape", [(5, 3), (4,), (2, 2, 2)])
def test_rows_that_do_not_fit_are_refused(shape):
    message = rf"rows of shape \({', '.join(map(str, shape))},?\) cannot be mixed by a matrix for 4 nodes"
    refused(MixingError, message, SimulatedNetwork(ring(4)).mix, torch.zeros(shape), metropolis_hastings(ring(4)))


# --- traffic ---
HALF = clique_averaging([(0, 1), (2, 3), (4, 5)], ring(6))  # half of the edges have no weight
ONE_WAY = Graph(6, [(i, (i + 1) % 6) for i in range(6)], directed=True)


@cases(
    "W, messages",
    (metropolis_hastings(ring(6)), 12),
    (HALF, 6),
    (MixingMatrix.from_dense(np.eye(6), ring(6)), 0),
    (uniform(ONE_WAY), 6),
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


FAST, SLOW = Link(0.01, 1e6), Link(0.5, 1e3)
ROWS = torch.zeros(4, 25, dtype=torch.float64)  # 200 bytes each
RING, TREE = metropolis_hastings(ring(4)), Graph(4, [(0, 1), (1, 2), (2, 3)])
PAIRS = MixingMatrix.from_dense(np.kron(np.eye(2), np.full((2, 2), 0.5)), ring(4))  # 0-1 and 2-3 only
STILL = MixingMatrix.from_dense(np.eye(4), ring(4))
LONG = torch.zeros(4, 10_000, dtype=torch.float64)
ARCS = torch.zeros(6, 25, dtype=torch.float64)
FAST_ROUND, SLOW_ROUND = 0.01 + 200 / 1e6, 0.5 + 200 / 1e3


@cases(
    "links, act, expected",
    # A round lasts as long as its slowest message.
    (Links(FAST), lambda network: network.mix(ROWS, RING), FAST_ROUND),
    (Links(FAST, {(1, 2): SLOW}), lambda network: network.mix(ROWS, RING), SLOW_ROUND),
    (Links(SLOW, {(2, 1): FAST}), lambda network: network.mix(ROWS, RING), SLOW_ROUND),  # the others are slow
    (Links(SLOW, dict.fromkeys(ring(4).edges, FAST)), lambda network: network.mix(ROWS, RING), FAST_ROUND),
    (None, lambda network: network.mix(ROWS, RING), 0),
    # An edge without weight carries no message.
    (Links(FAST, {(1, 2): SLOW}), lambda network: network.mix(ROWS, PAIRS), FAST_ROUND),
    (Links(FAST, {(1, 2): SLOW}), lambda network: network.mix(ROWS, STILL), 0),
    # Compressed rows take the time of their own bytes.
    (Links(FAST), lambda network: network.mix(ROWS, RING, packing=TopK(0.2)(ROWS, range(4), 0)), 0.01 + 60 / 1e6),
    # Gathers and means go around a ring at the slowest pace; short rows are averaged by a gather.
    (Links(FAST, {(0, 3): SLOW}), lambda network: network.gather(ROWS), 3 * SLOW_ROUND),
    (Links(FAST, {(0, 3): SLOW}), lambda network: network.average(ROWS), 3 * SLOW_ROUND),
    (Links(FAST, {(0, 3): SLOW}), lambda network: network.average(LONG), 6 * (0.5 + 20_000 / 1e3)),
    (Links(FAST, {(0, 2): SLOW}), lambda network: network.gather(ROWS), 3 * FAST_ROUND),  # no edge of the ring
    # Messages along arcs are one round.
    (Links(FAST, {(2, 3): SLOW}), lambda network: network.exchange(ARCS, TREE), SLOW_ROUND),
    (Links(FAST, {(0, 3): SLOW}), lambda network: network.exchange(ARCS, TREE), FAST_ROUND),
)
def test_the_time_of_an_operation(links, act, expected):
    network = SimulatedNetwork(ring(4), links)
    act(network)
    act(network.uncounted())  # measuring takes no time
    assert network.traffic.seconds == pytest.approx(expected)


@pytest.mark.parametrize("bad", [(-1, 1), (0, 0), (float("nan"), 1), (0, float("nan"))])
def test_links_that_cannot_be_are_refused(bad):
    refused(NetworkError, "latency is 0 seconds or more", Link, *bad)


# --- in recipes ---
def planned(links, *changes):
    return recipe_run("steps=6", "seeds=0", "graph=ring:16", f"links={links}", *changes, variant="ha-dsgd")


def test_records_hold_the_time():
    run = prepare(planned("{latency: 0.01, bandwidth: 1.0e6}"), 0)
    times = [record.values["network_seconds"] for record in run()]
    round_, sketches = (
        0.01 + 10 * 8 / 1e6,
        15 * (0.01 + 10 * 8 / 1e6),
    )  # updates, no longer than sketches, at even steps
    assert times == pytest.approx(np.cumsum([round_ + sketches * (t % 2 == 0) for t in range(6)]))
    assert "network_seconds" not in next(prepare(planned("null"), 0)()).values


@cases(
    "links, says",
    ("{latency: -1, bandwidth: 1}", "latency = -1: input should be greater than or equal to 0"),
    ("{latency: 1}", "bandwidth: field required"),
    ("{bandwidth: 0}", "bandwidth = 0: input should be greater than 0"),
    ("{bandwidth: 1, edges: {a-b: {latency: 1}}}", "'a-b' is no edge; write the two places"),
    ("{bandwidth: 1, edges: {0-1: {speed: 1}}}", "unknown key 'speed'"),
)
def test_wrong_links_are_one_line(links, says):
    refused(ConfigError, says, planned, links)


def test_an_edge_that_the_graph_has_not_and_links_between_real_processes_are_refused():
    nowhere, anywhere = planned("{bandwidth: 1, edges: {0-7: {latency: 1}}}"), planned("{bandwidth: 1}")
    refused(ConfigError, "the graph has no edge 0-7", prepare, nowhere, 0)
    refused(ConfigError, "links are for simulations", prepare, anywhere, 0, SimpleNamespace(rank=0, size=2))


def test_an_edge_in_a_recipe_names_places():
    run = planned("{bandwidth: 1.0e6, edges: {0-1: {latency: 2}}}", "graph=chain:3", "placement=[2, 0, 1]")
    assert prepare(run, 0).start().network.links.edges == {(2, 0): Link(2, 1e6)}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_rows_of_whole_numbers_are_refused_not_cut(dtype):
    W, rows = metropolis_hastings(ring(4)), torch.tensor([[0], [1], [0], [0]], dtype=dtype)
    plain = SimulatedNetwork(ring(4))
    rule = "rows of dtype .* cannot be averaged, only floating-point ones can; pass rows.float()"
    for network in (plain, FaultyNetwork(plain, Faults(message_loss=0.1)), GuardedNetwork(plain, "clip")):
        refused(MixingError, rule, network.mix, rows, W)
        refused(MixingError, rule, network.average, rows)
        refused(MixingError, "rows is None; pass a tensor", network.mix, None, W)
        refused(MixingError, "rows is an object of type ndarray; pass a tensor", network.average, rows.numpy())
    refused(MixingError, "W is an object of type ndarray; pass a mixing matrix", plain.mix, rows.float(), W.to_dense())


def test_networks_are_made_of_what_means_a_graph_and_of_networks():
    assert SimulatedNetwork("ring:4").graph == SimulatedNetwork(as_networkx(ring(4))).graph == ring(4)
    refused(GraphError, "graph is 4; pass a mixwise.Graph", SimulatedNetwork, 4)
    rule = r"network is an object of type Graph; pass a simulated one, SimulatedNetwork\(graph\)"
    refused(NetworkError, rule, FaultyNetwork, ring(4), Faults(message_loss=0.1))
    refused(NetworkError, "faults is 0.1; pass what happens", FaultyNetwork, SimulatedNetwork(ring(4)), 0.1)
    refused(NetworkError, "network is an object of type Graph; pass a network", GuardedNetwork, ring(4))
