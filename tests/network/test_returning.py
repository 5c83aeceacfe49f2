"""Nodes of a simulation that return with the model of a neighbor: what they take, and what the methods conserve."""

import pytest
import torch
from torch import nn

import mixwise.algorithms as alg
from builders import cases, faulty, random_rows, simulated, stepped
from mixwise import graphs
from mixwise.data import gaussian_mixture, partition
from mixwise.mixing import lazy, metropolis_hastings, uniform_sender
from mixwise.network import Link, Links, SimulatedNetwork
from mixwise.tasks import ModuleTask, random_quadratics

RING = graphs.ring(6)
MH = metropolis_hastings(RING)


def network(graph=RING, returning="from-neighbor", **options):
    return faulty(graph, 1, returning=returning, **options)


@pytest.fixture
def trace(tmp_path):
    """Writes a trace of lines such as 2,5,off: step, node, state."""

    def write(*lines):
        (tmp_path / "away.csv").write_text("\n".join(["step,node,state", *lines, ""]))
        return str(tmp_path / "away.csv")

    return write


# --- what a node takes ---
def test_a_node_asks_a_neighbor_that_was_present_or_else_another_node(trace):
    lines = "2,2,off", "4,2,on", "2,1,off", "4,1,on", "4,5,off", "5,5,on", "5,0,off", "5,4,off"
    faults, asked = network(trace=trace(*lines)), []
    for faults.step in range(6):
        asked.append(faults.returned(faults.step - 1))
    assert asked == [{}, {}, {}, {}, {1: 0, 2: 3}, {5: 1}]  # 0 and 4, next to 5, are away
    faults.step = 5
    assert faults.returned(1) == {1: 3, 2: 3, 5: 3}  # in a round of four steps: only 3 was present all the time
    lines = (f"{step},{node},{state}" for node in range(6) for step, state in ((1, "off"), (2, "on")))
    faults = network(trace=trace(*lines))
    faults.step = 2
    assert faults.returned(1) == {}  # no node was present


def test_it_continues_with_the_model_and_the_momentum_of_that_neighbor(trace):
    """As if its row and its momentum had been replaced by hand; the transfer is counted."""
    task, link = random_quadratics(6, noise=0.0), Link(0.01, 1e6)
    options = {"links": Links(link), "trace": trace("2,2,off", "4,2,on")}
    own, taken = (
        simulated(MH, task=task, network=network(RING, returning, **options), lr=1e-3, momentum=0.9)
        for returning in ("own", "from-neighbor")
    )
    for run in (own, taken):
        stepped(run, 4)
    assert torch.equal(own.X, taken.X)
    traffic = own.network.traffic
    assert (traffic.parameters, traffic.seconds) == (taken.network.traffic.parameters, taken.network.traffic.seconds)
    (momentum,) = (state["momentum_buffer"] for state in own.optimizer.state.values())
    for rows in (own.X, momentum):
        rows[2] = rows[1]
    for run in (own, taken):
        run.step()
    assert torch.equal(own.X, taken.X)
    size = 2 * task.layout.dim * own.X.element_size()
    assert taken.network.traffic.parameters - traffic.parameters == size
    assert taken.network.traffic.seconds - traffic.seconds == pytest.approx(link.seconds(size))


def test_buffers_come_with_the_model(trace):
    data = gaussian_mixture(classes=2, dim=8, samples=60).train
    module = lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))  # noqa: E731
    task = ModuleTask(module, data, partition.iid(len(data), 6, 0), batch=4, gradients="loop")
    run = simulated(MH, task=task, network=network(trace=trace("1,2,off", "3,2,on")), lr=0.1)
    compute, seen = task.losses_and_gradients, []

    def spy(X, nodes, step):
        seen.append(task.state().rows["buffers.1.running_mean"])
        return compute(X, nodes, step)

    task.losses_and_gradients = spy
    stepped(run, 4)
    assert not torch.equal(seen[2][2], seen[2][1])
    assert torch.equal(seen[3][2], seen[3][1])


def test_an_average_over_all_nodes_includes_those_that_are_away():
    found = []
    for returning in ("own", "from-neighbor"):
        faults = network(RING, returning, node_off=0.4)
        run = simulated("none", alg.LocalSGD(), network=faults, lr=1e-3, local_steps=3)
        found.append(stepped(run, 9).X)
    assert torch.equal(*found)


# --- what is conserved ---
@pytest.mark.parametrize("returning", ["own", "from-neighbor"])
@cases(
    "algorithm, W, conserved",
    (alg.GradientTracking(), MH, lambda X, rows: rows["C"].sum(0)),
    (alg.MomentumTracking(), MH, lambda X, rows: rows["C"].sum(0)),
    (alg.EXTRA(), MH, lambda X, rows: rows["D"].sum(0)),
    (alg.D2(), lazy(MH), lambda X, rows: (X - rows["psi"]).sum(0)),
    (alg.Choco(alg.TopK(0.4), 0.3), MH, lambda X, rows: (rows["mixed"] - rows["public"]).sum(0)),
    (alg.PushSum(), uniform_sender(RING), lambda X, rows: rows["mass"].sum() - 6),
    ids=lambda value: type(value).__name__ if isinstance(value, alg.Algorithm) else "",
)
def test_corrections_cancel_and_masses_add_up_although_nodes_leave_and_return(algorithm, W, conserved, returning):
    faults = network(RING, returning, node_off=0.3, away=2.0, message_loss=0.2)
    run = simulated(W, algorithm, task=random_quadratics(6, dim=5), network=faults, lr=1e-3)
    run.X.add_(random_rows(6, 5))
    run.driver.restart_algorithm(run.X)
    returns = 0
    for t in range(20):
        run.step()
        returns += len(faults.returned(t - 1))
        assert float(conserved(run.X, run.driver.algorithm_state.rows).abs().max()) < 1e-12
    assert returns > 5 or returning == "own"


def test_public_copies_are_those_that_the_neighbors_hold_once_a_node_has_returned(trace):
    """With its own model, a node has missed what the neighbors have sent: CHOCO's sums stay wrong ever after."""
    wrong = []
    for returning in ("own", "from-neighbor"):
        faults = network(RING, returning, trace=trace("2,2,off", "5,2,on"))
        run = stepped(simulated(MH, alg.Choco(alg.TopK(0.4), 0.3), network=faults, lr=1e-3), 8)
        mixed, public = (run.driver.algorithm_state.rows[name] for name in ("mixed", "public"))
        wrong.append(float((mixed - SimulatedNetwork(RING).mix(public, MH)).norm() / mixed.norm()))
    assert wrong[0] > 1e-3
    assert wrong[1] < 1e-12


def test_relayed_sums_and_counts_hold_every_node_once(trace):
    """As many steps after the return as the tree is wide; equal rows stay equal meanwhile."""
    tree = graphs.chain(6)
    faults = network(tree, trace=trace("4,2,off", "8,2,on"))
    run = simulated("tree", alg.RelaySGD(), network=faults, lr=0.0)
    run.X.fill_(3.0)
    for _ in range(8 + 5):
        run.step()
        torch.testing.assert_close(run.X, torch.full_like(run.X, 3.0))
    counts, graph = run.driver.algorithm_state.arcs["counts"], run.driver.algorithm_state.graph
    into = graph.arcs.receivers[graph.arcs.by_receiver]
    assert [1 + float(counts[into == node].sum()) for node in range(6)] == [6] * 6


@pytest.mark.parametrize(
    ("algorithm", "W"),
    [(alg.GradientTracking(), MH), (alg.EXTRA(), MH), (alg.D2(), lazy(MH))],
    ids=["tracking", "EXTRA", "D²"],
)
def test_exact_methods_reach_the_optimum_after_the_last_return(algorithm, W, trace):
    task = random_quadratics(6, noise=0.0, seed=1)
    leaving = network(trace=trace("50,2,off", "60,2,on", "70,4,off", "72,4,on"))
    run = simulated(W, algorithm, task=task, network=leaving, lr=0.2 / task.smoothness)
    before, after = (task.evaluate(stepped(run, steps).X)["distance_to_optimum"] for steps in (73, 1400))
    assert after < 1e-6 * before
