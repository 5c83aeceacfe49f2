"""Faults in simulations: what is conserved whatever is lost, how often things fail, and what a recipe says about it."""

import logging
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise as mw
from builders import asymmetric, cases, faulty, normal_rows, random_rows, refused, simulated, stepped
from every_algorithm import quadratic_run, runs
from mixwise import algorithms, graphs
from mixwise.context import Context
from mixwise.errors import ConfigError
from mixwise.experiments.build import prepare
from mixwise.mixing import lazy, metropolis_hastings, minimize_gme, symmetrized, uniform_sender
from mixwise.network import Faults, FaultyNetwork, Link, Links, SimulatedNetwork
from mixwise.network.faults import down
from mixwise.network.traffic import AGREEMENT, ROWS, SKETCHES
from mixwise.plan import Plan
from mixwise.policies import AwarePairs, HeterogeneityAware, Pairs
from mixwise.protocols import Algorithm
from mixwise.tasks import random_quadratics
from planning import Planner, assert_runs_resume, mixed
from run_folders import recipe_run
from strategies import connected_graphs

TORUS, RING = graphs.torus(4, 4), graphs.ring(6)
MH = metropolis_hastings(RING)
LOSSES = st.sampled_from([0.0, 0.1, 0.5, 0.95])
WIRES = st.sampled_from([None, torch.bfloat16, torch.int8])


def weights_used(network, W):
    """The dense W of a gossip step, seen from outside: node i sends a 1 in column i."""
    return network.mix(torch.eye(W.n, dtype=torch.float64), W).numpy().T


# --- how often ---
@pytest.mark.parametrize(("rate", "length"), [(0.1, None), (0.1, 5.0), (0.5, 20.0), (0.9, 10.0)])
def test_the_share_and_the_mean_length_of_failures_are_those_of_the_markov_chain(rate, length):
    items = np.arange(400) * 1_000_003
    states = np.array([down(items, t, rate, length, seed=3) for t in range(300)])
    length = length or 1 / (1 - rate)
    correlated = 1 + 2 * length * (1 - rate)  # steps that count as one draw, roughly
    assert abs(states.mean() - rate) < 4 * (rate * (1 - rate) * correlated / states.size) ** 0.5
    began_down = states[:-1].sum()
    recovers = (states[:-1] & ~states[1:]).sum() / began_down
    assert abs(recovers - 1 / length) < 4 * (1 / length / began_down) ** 0.5
    assert np.array_equal(states[7], down(items, 7, rate, length if length > 1 / (1 - rate) else None, seed=3))


@pytest.mark.parametrize("burst", [2.0, None])
def test_the_fate_of_a_message_depends_on_seed_step_and_link_and_on_nothing_else(burst):
    """A link that fails loses all rounds of a step, so products such as M N M stay symmetric.

    Without bursts, every message is lost by itself, but rows that follow each other travel together.
    """
    failing = {"message_loss": 0.3, "burst": burst}
    network, W, again = faulty(TORUS, **failing), metropolis_hastings(TORUS), metropolis_hastings(TORUS)
    drawn = []
    for t in (5, 9, 5):
        network.begin(t)
        first, second, other_round = (weights_used(network, each) for each in (W, W, again))
        np.testing.assert_array_equal(first, second)  # such as a row and its mass
        assert np.array_equal(first, other_round) == (burst is not None)
        drawn.append((first, other_round))
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert (drawn[0][0] != drawn[1][0]).any()
    other_seed = faulty(TORUS, 1, **failing)
    other_seed.begin(network.step)
    assert (weights_used(other_seed, W) != drawn[2][0]).any()
    if burst is not None:
        edges = [(i, j) for i, j in TORUS.edges if (i + j) % 3]
        part = weights_used(network, metropolis_hastings(mw.Graph(16, edges)))
        assert all((part[i, j] == 0) == (drawn[2][0][i, j] == 0) for i, j in edges)


# --- what is mixed ---
@settings(max_examples=60, deadline=None)
@given(connected_graphs(2), st.integers(0, 10_000), LOSSES, st.sampled_from([0.0, 0.4]), st.booleans(), WIRES)
def test_acknowledged_mixing_is_symmetric_and_conserves_the_mean_whatever_is_lost(
    graph, seed, loss, other, aware, wire
):
    X = random_rows(graph.n, 70, seed)
    W = minimize_gme((X @ X.T).numpy(), graph).W if aware else metropolis_hastings(graph)
    network = faulty(graph, seed, wire_dtype=wire, message_loss=loss, node_off=other, stragglers=other)
    used = weights_used(network, W)
    np.testing.assert_array_equal(used, used.T)
    np.testing.assert_allclose(used.sum(axis=0), 1, rtol=0, atol=1e-9)
    assert used.min() >= 0
    unused = symmetrized(W).to_dense() == 0
    np.fill_diagonal(unused, False)  # a loop keeps what was lost
    assert not used[unused].any()
    network.traffic.reset()
    torch.testing.assert_close(network.mix(X, W).mean(0), X.mean(0), rtol=0, atol=1e-8 if aware else 1e-13)
    assert network.traffic.parameters == network.traffic.messages * network.network.row_bytes(X)


@settings(max_examples=40, deadline=None)
@given(connected_graphs(2), st.integers(0, 10_000), LOSSES, st.sampled_from([0.0, 0.3]), st.integers(1, 3))
def test_pairs_agreed_on_by_offers_are_matchings_and_conserve_the_mean_whatever_is_lost(graph, seed, loss, other, k):
    """Sketches, offers and rows are lost, nodes are away and late: never two partners, no pair is one-sided."""
    network = faulty(graph, seed, message_loss=loss, node_off=other, stragglers=other)
    planner, X = Planner(AwarePairs(k), network, seed=seed), torch.from_numpy(normal_rows(graph.n, 6, seed))
    for t in range(2):
        network.begin(t)
        before = X.mean(0)
        for W in planner.plan(t, rows=X).params:
            assert max(W.graph.degrees, default=0) <= 1
            assert set(W.graph.edges) <= set(graph.edges)
            used = weights_used(network, W)
            np.testing.assert_array_equal(used, used.T)
            np.testing.assert_array_equal(used.sum(axis=0), 1)
            X = network.mix(X, W)
        torch.testing.assert_close(X.mean(0), before, rtol=0, atol=1e-14)


def test_pairs_are_still_found_where_messages_are_lost():
    network = faulty(graphs.ring(64), message_loss=0.1)
    planner, X = Planner(AwarePairs(1), network), torch.from_numpy(normal_rows(64, 6))
    pairs = []
    for t in range(20):
        network.begin(t)
        pairs.append(len(planner.plan(t, rows=X).params[0].graph.edges))
    assert 22 < np.mean(pairs) < 32  # greedy matchings of a ring of 64 have 28 or so
    assert len(set(pairs)) > 1


def test_without_acknowledgment_the_own_row_replaces_a_lost_one_and_the_mean_drifts():
    W, X = asymmetric(8), random_rows(8, 5)
    network = faulty(W.graph, seed=1, message_loss=0.4, acknowledged=False)
    used, dense = weights_used(network, W), W.to_dense()
    lost = (used == 0) & (dense != 0) & ~np.eye(8, dtype=bool)
    assert 5 < lost.sum() < 40
    assert (lost != lost.T).any()
    np.testing.assert_allclose(np.diag(used), np.diag(dense) + (lost * dense).sum(axis=0), rtol=1e-13)
    np.testing.assert_allclose(used.sum(axis=0), 1, atol=1e-12)
    assert float((network.mix(X, W).mean(0) - X.mean(0)).norm()) > 0.01


def test_rows_of_messages_are_lost_at_the_stated_rate_and_edges_where_either_direction_is():
    p, W, steps = 0.2, metropolis_hastings(TORUS), 200
    for acknowledged, expected in ((True, 1 - (1 - p) ** 2), (False, p)):
        network, lost = faulty(TORUS, message_loss=p, acknowledged=acknowledged), 0
        for t in range(steps):
            network.begin(t)
            lost += ((weights_used(network, W) == 0) & (W.to_dense() != 0)).sum()
        assert abs(lost / (64 * steps) - expected) < 5 * (expected / (32 * steps)) ** 0.5
        assert abs(network.figures()["messages_lost"] - p) < 5 * (p / (64 * steps)) ** 0.5


# --- nodes ---
def test_a_node_that_is_away_keeps_its_row_and_sends_nothing(tmp_path):
    (tmp_path / "away.csv").write_text("step,node,state\n4,2,on\n2,2,off\n2,0,off\n")
    graph = graphs.ring(6)
    network, W = faulty(graph, trace=str(tmp_path / "away.csv")), metropolis_hastings(graph)
    X = random_rows(6, 3)
    for t, away in ((1, []), (2, [0, 2]), (3, [0, 2]), (4, [0])):
        network.begin(t)
        network.traffic.reset()
        alone = (network.mix(X, W) - X).abs().amax(dim=1) < 1e-15
        assert alone.nonzero()[:, 0].tolist() == ([0, 1, 2] if away == [0, 2] else away)  # 1 is between 0 and 2
        assert network.traffic.parameters == (6 - len(away)) * 2 * 3 * 8
        figures = network.figures()
        assert (figures["nodes_away"], figures.get("away", "")) == (len(away), ", ".join(map(str, away)))
        arrivals = network.exchange(torch.ones(12, 1), graph, cargo=SKETCHES)
        gone = [i in away or j in away for j in range(6) for i in graph.neighbors(j)]
        assert arrivals.lost.tolist() == (arrivals.rows[:, 0] == 0).tolist() == gone


def test_nodes_that_are_away_in_turn():
    network = faulty(graphs.ring(10), node_off=0.2, away=2.0, cyclic=True)
    absent = []
    for t in range(30):
        network.begin(t)
        absent.append(network.figures()["nodes_away"])
    assert absent == [2] * 30


def test_a_straggler_hears_the_others():
    W, p = metropolis_hastings(graphs.ring(40)), 0.3
    used = weights_used(faulty(W.graph, stragglers=p, acknowledged=False), W)
    silent = {i for i in range(40) if all(used[i, j] == 0 for j in W.graph.neighbors(i))}
    assert 4 <= len(silent) <= 22
    for i, j in [*W.graph.edges, *((j, i) for i, j in W.graph.edges)]:
        assert (used[i, j] == 0) == (i in silent)


# --- other messages ---
def test_a_gathered_row_that_is_lost_is_the_mean_of_the_others_and_measurements_lose_nothing():
    network, rows = faulty(TORUS, message_loss=0.4), random_rows(16, 3)
    found = network.gather(rows)
    lost = (found != rows).any(dim=1)
    assert 2 <= int(lost.sum()) <= 12
    torch.testing.assert_close(found[lost], rows[~lost].mean(0).expand(int(lost.sum()), 3))
    assert torch.equal(network.measuring().gather(rows), rows)
    torch.testing.assert_close(network.average(rows), rows.mean(0))


@pytest.mark.parametrize("solver", ["auto", "local"])
def test_weights_are_found_however_much_is_lost(solver):
    network = faulty(graphs.ring(6), message_loss=0.95)
    stepped(simulated(HeterogeneityAware(solver=solver), network=network, lr=1e-3), 4)


# --- algorithms ---
def test_gradient_tracking_stays_exact_where_messages_are_lost():
    """Its correction keeps the mean 0, and all nodes reach the optimum; with one-sided mixing they do not."""

    def distance(**faults):
        task, network = random_quadratics(8, seed=1), faulty(graphs.ring(8), message_loss=0.2, **faults)
        tracking, options = algorithms.GradientTracking(), {"task": task, "lr": 0.2 / task.smoothness}
        training = stepped(simulated(metropolis_hastings(network.graph), tracking, network=network, **options), 300)
        C = training.driver.algorithm_state.rows["C"]
        return float(C.mean(0).norm() / C.norm()), task.evaluate(training.X)["distance_to_optimum"]

    drift, error = distance()
    assert drift < 1e-12
    loose_drift, loose_error = distance(acknowledged=False)
    assert loose_drift > 1e-3
    assert error < 1e-3 * loose_error


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_sender_keeps_the_mass_that_was_not_acknowledged(acknowledged):
    graph = graphs.directed_exponential(8)
    network, W = faulty(graph, 2, message_loss=0.4, acknowledged=acknowledged), uniform_sender(graph)
    ones = network.mix(torch.ones(8, 1, dtype=torch.float64), W)
    assert (float(ones.sum()) == pytest.approx(8, abs=1e-12)) is acknowledged
    torch.testing.assert_close(network.mix(torch.full((8, 1), 2.0, dtype=torch.float64), W), 2 * ones)


def test_relayed_sums_and_counts_are_lost_together():
    """Equal rows stay equal: every node divides the sum that it has by the number of rows in it."""
    tree, X = graphs.chain(6), torch.full((6, 2), 3.0)
    network = faulty(tree, 3, message_loss=0.3)
    state = algorithms.RelaySGD().init(X, Context(tree))
    for t in range(12):
        network.begin(t)
        found = mixed(algorithms.RelaySGD(), X, X, Plan((), tree=tree), network, state=state)
        torch.testing.assert_close(found, X)
    assert network.traffic.lost > 20


@cases(
    "algorithm, W, conserved",
    (algorithms.GradientTracking(), MH, lambda X, rows: rows["C"].sum(0)),
    (algorithms.MomentumTracking(), MH, lambda X, rows: rows["C"].sum(0)),
    (algorithms.EXTRA(), MH, lambda X, rows: rows["D"].sum(0)),
    (algorithms.D2(), lazy(MH), lambda X, rows: (X - rows["psi"]).sum(0)),
    (algorithms.Choco(algorithms.TopK(0.4), 0.3), MH, lambda X, rows: (rows["mixed"] - rows["public"]).sum(0)),
    (algorithms.PushSum(), uniform_sender(RING), lambda X, rows: rows["mass"].sum() - 6),
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_corrections_cancel_and_masses_add_up_although_nodes_leave_and_return(algorithm, W, conserved):
    network = faulty(RING, 1, node_off=0.3, away=2.0, message_loss=0.2)
    run = simulated(W, algorithm, task=random_quadratics(6, dim=5), network=network, lr=1e-3)
    run.X.add_(random_rows(6, 5))
    run.driver.restart_algorithm(run.X)
    for _ in range(20):
        run.step()
        assert float(conserved(run.X, run.driver.algorithm_state.rows).abs().max()) < 1e-12


# --- traffic ---
def test_lost_messages_were_sent():
    X, W = random_rows(16, 3), metropolis_hastings(TORUS)
    links = Links(Link(0.01, 1e6), {(0, 1): Link(0.5, 1e3)})
    assert torch.equal(faulty(TORUS).mix(X, W), SimulatedNetwork(TORUS).mix(X, W))
    network, whole = faulty(TORUS, links=links, message_loss=0.9), SimulatedNetwork(TORUS, links)
    for each in (network, whole):
        each.mix(X, W)
        each.start_mix(X, W).wait()
        for cargo in (ROWS, SKETCHES, AGREEMENT):
            each.exchange(random_rows(64, 3), TORUS, cargo=cargo)
        each.gather(X)
        each.average(X)
    sent = {"parameters": 0, "sketches": 0, "seconds": 0}
    assert {name: vars(network.traffic)[name] for name in sent} == {name: vars(whole.traffic)[name] for name in sent}
    assert network.traffic.lost > 200


# --- runs and recipes ---
@pytest.mark.parametrize("name", runs())
def test_every_method_runs_with_all_faults_and_resumes_with_the_same_ones(name):
    faults = Faults(message_loss=0.3, burst=2.0, node_off=0.3, away=2.0, stragglers=0.1)
    start = lambda: quadratic_run(name, lambda graph: FaultyNetwork(SimulatedNetwork(graph), faults, 1))  # noqa: E731
    assert_runs_resume(start, before=3, after=3)


planned = partial(recipe_run, "steps=20", "graph=ring:16")


def records(*changes):
    return [record.values for record in prepare(planned(*changes), 0)()]


def test_a_recipe_has_faults_and_repeats_itself():
    lossy = records("message_loss=0.1")
    assert lossy == records("faults={message_loss: 0.1}") == records("faults.message_loss=0.1") != records()
    assert 0.05 < lossy[-1]["messages_lost"] < 0.15
    assert "nodes_away" not in lossy[-1]
    assert "messages_lost" not in records("message_loss=0")[-1]
    assert max(values["nodes_away"] for values in records("faults.node_off=0.3")) > 1


@cases(
    "faults, says",
    ("{message_loss: 1.0}", "message_loss = 1.0: input should be less than 1"),
    ("{loss: 0.1}", "unknown key 'loss'"),
    ("{message_loss: 0.5, burst: 1.5}", r"burst = 1.5 .*at least 1 / \(1 − message_loss\) = 2"),
    ("{burst: 5}", "give message_loss above 0"),
    ("{node_off: 0.1, cyclic: true}", "cyclic: true needs node_off and away"),
    ("{node_off: 0.1, trace: x.csv}", "give one of them"),
    ("{trace: missing.csv}", "missing.csv: .*No such file.*; write lines such as 10,3,off"),
)
def test_wrong_faults_are_one_line(faults, says):
    refused(ConfigError, says, records, f"faults={faults}")


@pytest.mark.parametrize("line", ["1,99,off", "1,2,gone", "1,2", "one,2,off", ""])
def test_a_wrong_trace_is_one_line(tmp_path, line):
    (tmp_path / "trace.csv").write_text(f"step,node,state\n{line}\n" if line else "1,2,off\n1,3,off")
    refused(ConfigError, "write lines such as", faulty, graphs.ring(4), trace=str(tmp_path / "trace.csv"))


def test_faults_said_twice_or_between_real_processes_are_refused():
    refused(ConfigError, "short for faults.message_loss", planned, "message_loss=0.1", "faults.message_loss=0.1")
    run = planned("faults.stragglers=0.1")
    refused(ConfigError, "faults are for simulations", prepare, run, 0, SimpleNamespace(rank=0, size=2))


@cases(
    "faults, says",
    *(({"stragglers": share}, "lies in") for share in (-0.1, 1.0, float("nan"))),
)
def test_python_checks_faults_as_recipes_do(faults, says):
    refused(ConfigError, says, Faults, **faults)


@cases(
    "algorithm, policy, faults, says",
    (algorithms.DSGD(), Pairs(), {}, None),
    (algorithms.AllReduceSGD(), "none", {}, "loses nothing"),
    (algorithms.Choco(), "metropolis-hastings", {}, "missing ever after"),
    (algorithms.DSGD(), "metropolis-hastings", {"acknowledged": False}, "move the mean"),
    (algorithms.PushSum(), "uniform-sender", {"acknowledged": False}, "loses mass"),
    (algorithms.PushSum(), "uniform-sender", {}, None),
    (algorithms.RelaySGD(), "tree", {}, "part of the tree"),
)
def test_faults_that_a_method_cannot_make_up_for_are_announced(algorithm, policy, faults, says, caplog):
    with caplog.at_level(logging.WARNING, "mixwise"):
        simulated(policy, algorithm, network=faulty(graphs.ring(8), message_loss=0.1, **faults))
    assert [says in message for message in caplog.messages] == [True] if says else not caplog.messages
