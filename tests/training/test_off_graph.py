"""Weights send along the arcs of the run's graph; those that may leave it declare it, and records and tables say so."""

from dataclasses import dataclass

import torch

import mixwise as mw
import mixwise.algorithms as alg
import mixwise.policies as pol
from builders import cases, refused, sgd, simulated, stepped
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, ring
from mixwise.mixing import MixingMatrix, full_averaging, metropolis_hastings
from mixwise.needs import Provides
from mixwise.plan import Plan
from mixwise.protocols import Policy
from mixwise.report.folder import read_folder
from mixwise.report.page import page_data
from mixwise.tasks import random_quadratics
from mixwise.training import records, train
from planning import assert_runs_resume

GRAPH = ring(6)
MH = metropolis_hastings(GRAPH)
FIRST = "from node 0 to node 2, an arc that the graph of the run does not have"


@dataclass(frozen=True)
class Later(Policy):
    """Weights of the graph at mixings 0 and 1, then others."""

    W: MixingMatrix

    def plan(self, round, state, network):
        return Plan((metropolis_hastings(network.graph) if round.t < 2 else self.W,))


@dataclass(frozen=True)
class OwnEdges(Later):
    """The same, declared."""

    provides = Provides(own_edges=True)


def last(policy, graph=GRAPH, **options):
    """The values of the last of four steps."""
    task = random_quadratics(graph.n, dim=4)
    return train(task, graph, policy, optimizer=sgd(0.005), steps=4, **options).last.values


# --- rejected ---
@cases(
    "policy",
    metropolis_hastings(complete(6)),
    full_averaging(GRAPH),
    lambda graph: metropolis_hastings(complete(graph.n)),
    pol.Alternating([MH, metropolis_hastings(complete(6))]),
    pol.Product([metropolis_hastings(complete(6)), MH]),
    pol.HeterogeneityAware(alternate_with=metropolis_hastings(complete(6))),
)
def test_weights_of_another_graph_are_rejected_before_the_first_step(policy):
    refused(MixingError, FIRST, simulated, policy, graph=GRAPH)


def test_a_policy_of_your_own_is_rejected_at_the_mixing_that_leaves_the_graph():
    training = stepped(simulated(Later(metropolis_hastings(complete(6))), graph=GRAPH), 2)
    refused(MixingError, FIRST, training.step)


def test_both_channels_are_checked():
    off = pol.Decoupled(params=MH, updates=metropolis_hastings(complete(6)))
    refused(MixingError, FIRST, simulated, off, alg.DecoupledDSGD(), GRAPH)


def test_a_direction_that_the_graph_lacks_is_rejected():
    one_way = Graph(3, [(0, 1), (1, 2), (2, 0)], directed=True)
    refused(MixingError, "from node 0 to node 2", simulated, metropolis_hastings(complete(3)), graph=one_way)


# --- allowed ---
@cases("W", metropolis_hastings(chain(6)), MixingMatrix.from_dense(torch.eye(6), complete(6)))
def test_fewer_edges_and_zero_weights_stay_on_the_graph(W):
    assert "left_graph" not in last(W)


@cases(
    "policy, algorithm",
    ("full-averaging", None),
    (full_averaging, None),
    ("none", "all-reduce"),
    (pol.Cycle("base-graph"), None),
    (pol.Alternating([MH, "full-averaging"]), None),
    (OwnEdges(metropolis_hastings(complete(6))), None),
)
def test_references_and_declared_edges_are_named_in_the_records(policy, algorithm):
    assert last(policy, algorithm=algorithm)["left_graph"] is True


def test_an_average_over_all_nodes_does_not_leave_a_complete_graph():
    assert "left_graph" not in last("full-averaging", graph=complete(6))


def test_a_record_names_a_mixing_since_the_last_one_and_a_resumed_run_knows_it():
    policy = pol.Cycle("one-peer-exponential")  # distances 1, 2, 4 of 8 nodes: on the ring, and twice not

    def start():
        return simulated(pol.Alternating(["full-averaging", "metropolis-hastings", policy]), graph=ring(8))

    left = [record.values.get("left_graph", False) for record in records(start(), 8, 1, 8)]
    assert left == [True, False, True, True, False, True, True, False]
    assert all(record.values.get("left_graph") for record in records(start(), 8, 2, 8))
    assert_runs_resume(start, before=3)


@cases("policy, name", ("base-graph", "mine (own edges)"), ("full-averaging", "mine (reference)"), ("auto", "mine"))
def test_tables_and_reports_name_them(tmp_path, policy, name):
    policy = pol.Cycle(policy) if policy == "base-graph" else policy
    task = random_quadratics(6, dim=4)
    options = {"optimizer": sgd(0.005), "steps": 2, "progress": False, "out": tmp_path / "run"}
    run = mw.compare(task, GRAPH, {"mine": policy}, **options)
    assert f"| {name} |" in run.summary.to_markdown("title")
    (experiment,) = page_data([read_folder(tmp_path / "run")])["experiments"]
    told = "".join(text for text, _ in experiment["story"])
    assert ("on edges that the graph does not have" in experiment["rows"][0]["note"]) == ("own edges" in name)
    assert ("sends along edges of its own" in told) == ("own edges" in name)
