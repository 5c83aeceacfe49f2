"""What a rank that joins receives, and what the memory of an algorithm is worth after a change of the members."""

import pickle
import re
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from builders import TouchesAFile, cases, refused
from mixwise.algorithms import D2, Choco, GradientTracking, PushSum, RelaySGD
from mixwise.context import Context
from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip import Gossip
from mixwise.gossip.elastic import Elastic
from mixwise.gossip.model_row import ModelRow
from mixwise.gossip.schedule import Schedule
from mixwise.graphs import Graph, ring
from mixwise.mixing import lazy_metropolis_hastings, metropolis_hastings, uniform_sender
from mixwise.network import SimulatedNetwork
from mixwise.network.agreement import describe_model
from mixwise.network.state_server import StateServer, encode_state, fetch_state
from mixwise.policies import Fixed, Tree
from mixwise.protocols import Algorithm
from mixwise.training.driver import Driver
from programs import free_port

needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6 here")


# --- state that travels ---
class FakeMembership:
    """The others of a rank that joins."""

    def __init__(self, rank, *others):
        self.me, self.others, self.phase = rank, list(others), None

    def be(self, phase):
        self.phase = phase


def loop(seed, kind):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = kind(model.parameters())
    gossip = Gossip(model, optimizer, Graph(1, []))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().sum().backward()
        gossip.step()
    return model, optimizer


def elastic(model, optimizer, rank=0, *others, rejoin="neighbor", schedule=None):
    """An `Elastic` without lighthouse and groups."""
    made = object.__new__(Elastic)
    made._parts = SimpleNamespace(
        row=ModelRow(model), lines=describe_model(model), optimizer=optimizer, graph=ring(4),
        options=SimpleNamespace(rejoin=rejoin), schedule=schedule or Schedule(None, optimizer),
    )  # fmt: skip
    made._timeout, made._still, made._t = 10.0, threading.Lock(), -1
    made._serve("127.0.0.1")
    made.membership = FakeMembership(SimpleNamespace(rank=rank, host="127.0.0.1", state=made._server.port), *others)
    return made


@contextmanager
def serving(giver):
    """Offer the state again and again, as the loop of a rank does."""
    ended = threading.Event()

    def steps():
        while not ended.wait(0.005):
            giver.settled(7)
            giver.offer()
            giver.changes()

    threading.Thread(target=steps, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@pytest.mark.parametrize(
    "kind",
    [lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)],
    ids=["SGD", "Adam"],
)
def test_a_rank_that_joins_has_the_model_and_the_optimizer_of_a_neighbor(kind):
    given, taken = loop(1, kind), loop(2, kind)
    giver = elastic(*given, 1)
    joins = elastic(*taken, 0, giver.membership.me)
    with serving(giver):
        assert joins._join() == (7, 0)
    assert joins.membership.phase == "member"
    for mine, theirs in zip(taken[0].state_dict().values(), given[0].state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    x = torch.randn(8, 3)
    for model, optimizer in (given, taken):  # and so the next step is the same, to the bit
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    for mine, theirs in zip(taken[0].parameters(), given[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_rank_may_join_with_its_own_model():
    """For instance that of its last checkpoint; only the mixing at which the others are is taken from a neighbor."""
    model, optimizer = loop(2, torch.optim.SGD)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    giver = elastic(*loop(1, torch.optim.SGD), 1)
    joins = elastic(model, optimizer, 0, giver.membership.me, rejoin="own")
    with serving(giver):
        assert joins._join() == (7, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("rejoin", ["neighbor", "own"])
def test_the_schedule_of_a_rank_that_joins_is_that_of_the_others(rejoin):
    """Also if theirs did not begin at step 0 of the run, and though its optimizer has not taken a step."""

    def ranks(steps):
        model, optimizer = loop(1, torch.optim.SGD)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        return model, optimizer, Schedule(scheduler, optimizer)

    (*given, theirs), (*taken, own) = ranks(2), ranks(0)
    giver = elastic(*given, 1, schedule=theirs)
    theirs.follow(7)
    with serving(giver):
        own.follow(elastic(*taken, 0, giver.membership.me, rejoin=rejoin, schedule=own)._join()[0])
    for part in (theirs, own):
        part.follow(11)
    assert taken[1].param_groups[0]["lr"] == given[1].param_groups[0]["lr"] < 0.001


def test_a_rank_that_joins_does_not_wait_for_a_neighbor_that_is_stopped():
    """It takes the state of the next one, once the stopped one is left out."""
    model, optimizer = loop(2, torch.optim.SGD)
    stopped, giver = elastic(*loop(1, torch.optim.SGD), 1), elastic(*loop(1, torch.optim.SGD), 3)
    joins = elastic(model, optimizer, 0, stopped.membership.me, giver.membership.me)
    joins._timeout = 600.0

    def leave_out():
        while not stopped._server.wanted:
            time.sleep(0.01)
        del joins.membership.others[0]

    threading.Thread(target=leave_out, daemon=True).start()
    with serving(giver):
        assert joins._join() == (7, 0)
    stopped.settled(0)  # so that the call that was left behind ends
    stopped.offer()


def test_a_rank_with_another_model_cannot_join():
    giver = elastic(*loop(1, torch.optim.SGD), 1)
    other = torch.nn.Linear(2, 2)
    joins = elastic(other, torch.optim.SGD(other.parameters()), 0, giver.membership.me)
    with serving(giver):
        refused(TrainingError, "rank 0 cannot join: rank 0 differs from rank 1", joins._join)
    assert joins.membership.phase is None


def test_a_rank_that_joins_asks_again_as_long_as_others_are_alive_and_says_so(caplog, monkeypatch):
    """It gave up after each had been asked once, while they were busy, and its restart was used up."""
    monkeypatch.setattr("mixwise.gossip.elastic._AGAIN", 0.01)
    giver = elastic(*loop(1, torch.optim.SGD), 1)
    gone = SimpleNamespace(rank=1, host="127.0.0.1", state=free_port())
    joins = elastic(*loop(2, torch.optim.SGD), 0, gone)

    def come():
        while len(caplog.messages) < 3:
            time.sleep(0.01)
        joins.membership.others[:] = [giver.membership.me]

    threading.Thread(target=come, daemon=True).start()
    with serving(giver):
        assert joins._join() == (7, 0)
    assert all(re.match("rank 0 waits for the model of one of ranks 1, to join them: ", m) for m in caplog.messages)


def test_without_a_rank_that_is_alive_joining_is_an_error(monkeypatch):
    gone = SimpleNamespace(rank=1, host="127.0.0.1", state=free_port())
    joins = elastic(*loop(2, torch.optim.SGD), 0, gone)
    joins._timeout = 0.1
    threading.Timer(0.1, joins.membership.others.clear).start()
    refused(NetworkError, "rank 0 cannot join: the ranks that were training have ended", joins._join)


def test_a_busy_rank_is_joined_outside_of_its_steps_and_not_inside(monkeypatch):
    """It may be evaluating its model for longer than the timeout."""
    monkeypatch.setattr("mixwise.network.state_server._SOON", 0.02)
    giver = elastic(*loop(1, torch.optim.SGD), 1)
    joins = elastic(*loop(2, torch.optim.SGD), 0, giver.membership.me)
    giver.changes()
    timer = threading.Timer(0.3, giver.settled, [5])
    start = time.monotonic()
    timer.start()
    assert joins._join() == (5, 0)
    assert time.monotonic() - start > 0.25


def test_connections_without_a_request_are_closed_and_those_with_one_are_bounded(monkeypatch):
    """Each had a thread, without end."""
    monkeypatch.setattr("mixwise.network.state_server._REQUEST", 0.2)
    monkeypatch.setattr("mixwise.network.state_server._CONNECTIONS", 3)
    server = StateServer("127.0.0.1", 30.0)
    before = threading.active_count()
    for _ in range(2):  # the first ones make room for others
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30.0) for _ in range(6)]
        assert all(connection.recv(1) == b"" for connection in idle)  # closed by the server
        assert threading.active_count() <= before + 3
        for connection in idle:
            connection.close()
        while threading.active_count() > before:
            time.sleep(0.01)
    server.offer(b"")
    threading.Timer(0.2, server.offer, [encode_state({}, {"t": 3})]).start()
    assert fetch_state("127.0.0.1", server.port, 30.0) == ({}, {"t": 3})


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_state_listens_where_it_is_told(host):
    server = StateServer(host, 0.05)
    assert server._server.server_address[0] == host
    refused(NetworkError, "has not offered its state within 5 s", fetch_state, host, server.port, 5.0)


@pytest.mark.parametrize("encode", [pickle.dumps, lambda harm: b"", lambda harm: b"\xff" * 100])
def test_a_state_that_is_none_is_refused_and_runs_no_code(tmp_path, encode):
    body = encode(TouchesAFile(tmp_path / "executed"))

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        refused(NetworkError, "cannot be read", fetch_state, "127.0.0.1", server.server_address[1], 5.0)
        thread.join()
    assert not (tmp_path / "executed").exists()


# --- memory after a change of the members ---
RING, ONE_WAY = ring(5), Graph(3, [(0, 1), (1, 2), (2, 0), (0, 2)], directed=True)
MH = torch.from_numpy(metropolis_hastings(RING).to_dense())


def restarted(algorithm, policy, graph, mixings=6):
    """Rows as far apart as they are in the middle of a run, and a new driver for them; yields after every mixing."""
    n, lr, noise, network = graph.n, 0.1, torch.Generator().manual_seed(3), SimulatedNetwork(graph)
    X = torch.randn(n, 5, dtype=torch.float64, generator=noise)
    driver = Driver(network, policy, algorithm, X, Context(graph), local_steps=1)
    driver.begin_at(100)
    for _ in range(mixings):
        G, before = torch.randn(n, 5, dtype=torch.float64, generator=noise), X.clone()
        given = G.clone()
        driver.algorithm.direction(G, driver.algorithm_state, network)
        driver.begin(X)
        driver.stepped(lr)
        X.sub_(G, alpha=lr)
        round = driver.round(X, G)
        driver.mix(round, driver.plan(round))
        yield before, given, lr, X, driver


@cases(
    "algorithm, weights, graph, conserved",
    (GradientTracking(), metropolis_hastings, RING, lambda rows: rows["C"].sum(0)),
    # X⁺ = Wᵀ(2X − X⁻ − γ(G − G⁻)): it moves by −γ ḡ from the first step on, not by the difference of two.
    (D2(), lazy_metropolis_hastings, RING, None),
    # The copies are those that the neighbors hold.
    (Choco(), metropolis_hastings, RING, lambda rows: rows["mixed"] - MH.T @ rows["public"]),
    (PushSum(), uniform_sender, ONE_WAY, lambda rows: rows["mass"].sum() - 3),
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_a_method_that_starts_over_moves_the_mean_by_the_mean_gradient(algorithm, weights, graph, conserved):
    """Σ w x moves by −γ Σ g, whatever was remembered, with the masses w of push-sum, and w = 1 elsewhere."""
    mass = torch.ones(graph.n, 1, dtype=torch.float64)
    for before, G, lr, X, driver in restarted(algorithm, Fixed(weights), graph):
        rows = driver.algorithm_state.rows
        after = rows.get("mass", mass).clone()
        assert torch.allclose((after * X).sum(0), (mass * before).sum(0) - lr * G.sum(0), rtol=0, atol=1e-11)
        assert conserved is None or conserved(rows).abs().max() < 1e-12
        mass = after
    assert (mass.std() > 0.1) == (graph == ONE_WAY)  # there it is no matter of weights that are doubly stochastic


def test_relay_starts_over_with_the_rows_of_the_nodes_that_are_present():
    """After as many mixings as the tree's diameter, every node has counted each of the n present nodes once."""
    n = 5
    for number, (*_, driver) in enumerate(restarted(RelaySGD(), Tree(), RING, mixings=2 * n), 1):
        state = driver.algorithm_state
        counted = torch.ones(n, dtype=torch.float64)
        counted.index_add_(0, torch.tensor(sorted(state.graph.arcs.receivers)), state.arcs["counts"][:, 0])
        assert counted.max() <= n
        if number >= n:
            assert torch.equal(counted, torch.full((n,), float(n), dtype=torch.float64))
