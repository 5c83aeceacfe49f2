"""Simulated network time, against the formulas written out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from builders import refused
from mixwise.errors import ConfigError, NetworkError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare
from mixwise.graphs import Graph, ring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.network import Link, Links, LossyNetwork, SimulatedNetwork
from mixwise.network.traffic import Cast

FAST, SLOW = Link(0.01, 1e6), Link(0.5, 1e3)
ROWS = torch.zeros(4, 25, dtype=torch.float64)  # 200 bytes each


RING, TREE = metropolis_hastings(ring(4)), Graph(4, [(0, 1), (1, 2), (2, 3)])
PAIRS = MixingMatrix.from_dense(np.kron(np.eye(2), np.full((2, 2), 0.5)), ring(4))  # 0-1 and 2-3 only
STILL = MixingMatrix.from_dense(np.eye(4), ring(4))
LONG = torch.zeros(4, 10_000, dtype=torch.float64)
ARCS = torch.zeros(6, 25, dtype=torch.float64)
FAST_ROUND, SLOW_ROUND = 0.01 + 200 / 1e6, 0.5 + 200 / 1e3


@pytest.mark.parametrize(
    ("links", "act", "expected"),
    [
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
        (Links(FAST), lambda network: network.mix(ROWS, RING, packing=Cast(ROWS, torch.bfloat16)), 0.01 + 50 / 1e6),
        # Gathers and means go around a ring at the slowest pace; short rows are averaged by a gather.
        (Links(FAST, {(0, 3): SLOW}), lambda network: network.gather(ROWS), 3 * SLOW_ROUND),
        (Links(FAST, {(0, 3): SLOW}), lambda network: network.average(ROWS), 3 * SLOW_ROUND),
        (Links(FAST, {(0, 3): SLOW}), lambda network: network.average(LONG), 6 * (0.5 + 20_000 / 1e3)),
        (Links(FAST, {(0, 2): SLOW}), lambda network: network.gather(ROWS), 3 * FAST_ROUND),  # no edge of the ring
        # Messages along arcs are one round.
        (Links(FAST, {(2, 3): SLOW}), lambda network: network.exchange(ARCS, TREE), SLOW_ROUND),
        (Links(FAST, {(0, 3): SLOW}), lambda network: network.exchange(ARCS, TREE), FAST_ROUND),
    ],
)
def test_the_time_of_an_operation(links, act, expected):
    network = SimulatedNetwork(ring(4), links)
    act(network)
    assert network.traffic.seconds == pytest.approx(expected)


def test_uncounted_operations_take_no_time_and_lossy_networks_count_it():
    network = LossyNetwork(ring(4), 0.0, links=Links(FAST))
    with network.uncounted():
        network.average(ROWS)
    assert network.traffic.seconds == 0
    network.average(ROWS)
    assert network.traffic.seconds > 0


def test_links_move_with_the_nodes():
    moved = Links(FAST, {(0, 1): SLOW}).permuted([2, 0, 1, 3])
    assert moved.edges == {(2, 0): SLOW}
    arc = np.array([0]), np.array([2])
    assert moved.round(*arc, 0) == 0.5


@pytest.mark.parametrize("bad", [(-1, 1), (0, 0), (float("nan"), 1), (0, float("nan"))])
def test_links_that_cannot_be_are_refused(bad):
    refused(NetworkError, "latency is 0 seconds or more", Link, *bad)


# --- in recipes ---
def planned(links, *changes):
    overrides = ["steps=6", "variants=ha-dsgd,dsgd-metropolis", "seeds=0", "graph=ring:16", f"links={links}", *changes]
    return plan_experiment(load_recipe("quadratics"), overrides)


def test_records_hold_the_time():
    run = prepare(planned("{latency: 0.01, bandwidth: 1.0e6}").runs["ha-dsgd"], 0)
    times = [record.values["network_seconds"] for record in run()]
    round_, sketches = 0.01 + 10 * 8 / 1e6, 15 * (0.01 + 100 * 8 / 1e6)  # sketches at even steps
    assert times == pytest.approx(np.cumsum([round_ + sketches * (t % 2 == 0) for t in range(6)]))
    assert "network_seconds" not in next(prepare(planned("null").runs["ha-dsgd"], 0)()).values


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ("{latency: -1, bandwidth: 1}", "latency = -1: input should be greater than or equal to 0"),
        ("{latency: 1}", "bandwidth: field required"),
        ("{bandwidth: 0}", "bandwidth = 0: input should be greater than 0"),
        ("{bandwidth: 1, edges: {a-b: {latency: 1}}}", "'a-b' is no edge; write the two places"),
        ("{bandwidth: 1, edges: {0-1: {speed: 1}}}", "unknown key 'speed'"),
    ],
)
def test_wrong_links_are_one_line(links, says):
    refused(ConfigError, says, planned, links)


def test_an_edge_that_the_graph_has_not_and_links_between_real_processes_are_refused():
    run = planned("{bandwidth: 1, edges: {0-7: {latency: 1}}}").runs["ha-dsgd"]
    refused(ConfigError, "the graph has no edge 0-7", prepare, run, 0)
    run = planned("{bandwidth: 1}").runs["ha-dsgd"]
    refused(ConfigError, "links are for simulations", prepare, run, 0, SimpleNamespace(rank=0, size=2))


def test_an_edge_in_a_recipe_names_places():
    experiment = planned("{bandwidth: 1.0e6, edges: {0-1: {latency: 2}}}", "graph=chain:3", "placement=[2, 0, 1]")
    training = prepare(experiment.runs["dsgd-metropolis"], 0).start()
    assert list(training.network.links.edges) == [(2, 0)]
    assert training.network.links.edges[2, 0] == Link(2, 1e6)
