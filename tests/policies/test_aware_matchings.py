"""Matchings chosen by the disagreement: against brute force, against what really is removed, and against a theorem."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixwise.policies as pol
from builders import laplacian, refused, simulated
from mixwise import algorithms, graphs
from mixwise.errors import GraphError, MixingError
from mixwise.graphs import Graph, heaviest_matching, matchings
from mixwise.mixing import gram_matrix, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies.edge_coloring import rounds_that_fit
from mixwise.policies.pairs import removed_by_pairs
from mixwise.sketch import ExactSketch
from planning import Planner

GRAPHS = [
    graphs.ring(7), graphs.torus(4, 4), graphs.star(6), graphs.social_network(), graphs.complete(9),
    graphs.random_connected(12, 0.3, seed=1),
]  # fmt: skip


def looked(policy, graph, X, t=0):
    """The plan of a policy that sees the rows X about to be mixed."""
    return Planner(policy, SimulatedNetwork(graph)).plan(t, rows=torch.from_numpy(X))


def disagreement(X):
    return float(((X - X.mean(axis=0)) ** 2).sum())


# --- the heaviest matching ---
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_the_heaviest_matching_equals_brute_force(n, seed):
    rng = np.random.default_rng(seed)
    graph = graphs.random_connected(n, max(0.5, 2 / n), seed=seed)
    weights = rng.integers(0, 6, len(graph.edges)) / 4
    weight_of = dict(zip(graph.edges, weights, strict=True))
    best = max(
        sum(weight_of[edge] for edge in chosen)
        for size in range(n // 2 + 1)
        for chosen in combinations(graph.edges, size)
        if len({node for edge in chosen for node in edge}) == 2 * size
    )
    found = heaviest_matching(graph, weights)
    assert set(found.edges) <= set(graph.edges)
    assert all(len(found.neighbors(i)) <= 1 for i in range(n))
    assert sum(weight_of[edge] for edge in found.edges) == pytest.approx(best)


def test_on_a_large_graph_heavy_edges_come_first_and_half_of_the_best_is_sure(monkeypatch):
    rng = np.random.default_rng(0)
    for graph in GRAPHS:
        weights = rng.random(len(graph.edges))
        weight_of = dict(zip(graph.edges, weights, strict=True))
        exact = sum(weight_of[edge] for edge in heaviest_matching(graph, weights).edges)
        monkeypatch.setattr(matchings, "_BLOSSOM_LIMIT", 0)
        greedy = heaviest_matching(graph, weights)
        monkeypatch.undo()
        assert graph.edges[int(weights.argmax())] in greedy.edges
        assert exact / 2 <= sum(weight_of[edge] for edge in greedy.edges) <= exact * (1 + 1e-9)


def test_edges_without_weight_are_left_out_and_wrong_weights_rejected():
    ring = graphs.ring(6)
    assert heaviest_matching(ring, np.zeros(6)).edges == ()
    for wrong in (np.zeros(5), np.full(6, np.nan), np.full(6, -1.0)):
        refused(GraphError, "one number per edge", heaviest_matching, ring, wrong)
    refused(GraphError, "undirected", heaviest_matching, graphs.directed_ring(4), np.ones(4))


# --- what a mixing removes ---
@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_what_an_edge_removes_is_what_averaging_its_two_nodes_removes(graph):
    X = np.random.default_rng(0).normal(size=(graph.n, 5))
    expected = removed_by_pairs(graph, gram_matrix(torch.from_numpy(X)))
    for (i, j), removed in zip(graph.edges, expected, strict=True):
        averaged = X.copy()
        averaged[[i, j]] = (X[i] + X[j]) / 2
        assert disagreement(X) - disagreement(averaged) == pytest.approx(removed, rel=1e-9)


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_every_round_is_the_best_matching_for_what_the_rounds_before_left(graph):
    X = np.random.default_rng(1).normal(size=(graph.n, 4))
    plan = looked(pol.HeterogeneityAwareMatchings(3, sketch=ExactSketch()), graph, X)
    assert len(plan.params) == 3
    for W in plan.params:
        Gamma = gram_matrix(torch.from_numpy(X))
        best = metropolis_hastings(heaviest_matching(graph, removed_by_pairs(graph, Gamma)))
        mixed = W.to_dense().T @ X
        assert disagreement(mixed) == pytest.approx(disagreement(best.to_dense().T @ X), rel=1e-9)
        assert W.to_dense().max(axis=0) == pytest.approx(np.where(np.diag(W.to_dense()) == 1, 1, 0.5))
        X = mixed


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_a_round_contracts_as_fast_as_the_theorem_says(graph):
    """The edges fall into Δ + 1 matchings (Vizing): the best removes Tr(XᵀLX) / 2(Δ + 1) ≥ λ₂ ‖X − X̄‖² / 2(Δ + 1)."""
    rate = 1 - np.linalg.eigvalsh(laplacian(graph))[1] / (2 * (max(graph.degrees) + 1))
    X = np.random.default_rng(2).normal(size=(graph.n, 6))
    policy, start = pol.HeterogeneityAwareMatchings(1, sketch=ExactSketch()), disagreement(X)
    for t in range(60):
        before = disagreement(X)
        X = looked(policy, graph, X, t).params[0].to_dense().T @ X
        assert disagreement(X) <= rate * before + 1e-12 * start
    assert disagreement(X) < 0.2 * start


@given(st.integers(2, 24), st.floats(0.05, 1.0), st.integers(0, 1000))
def test_by_default_no_more_is_sent_than_in_ordinary_gossip(n, density, seed):
    graph = graphs.random_connected(n, max(density, 2 / n), seed=seed)
    X = np.random.default_rng(seed).normal(size=(n, 3))
    plan = looked(pol.HeterogeneityAwareMatchings(sketch=ExactSketch()), graph, X)
    assert sum(W.messages for W in plan.params) <= metropolis_hastings(graph).messages


def test_how_many_rounds_fit():
    known = {graphs.ring(16): 2, graphs.torus(4, 4): 4, graphs.complete(9): 4, graphs.chain(5): 1, Graph(1, []): 1}
    assert {graph: rounds_that_fit(graph) for graph in known} == known


# --- what fits together ---
@pytest.mark.parametrize("policy", [pol.HeterogeneityAwareMatchings, pol.AwarePairs])
def test_matchings_that_are_chosen_one_by_one_cannot_run_forth_and_back(policy):
    """Nor are there pairs on a directed graph."""
    rule = "several matchings in a row are not; use rounds = 1, or policy: pairs"
    for several in (policy(), policy(2)):
        refused(MixingError, rule, simulated, several, algorithms.EXTRA(), graphs.ring(8))
    assert len(simulated(policy(1), algorithms.EXTRA(), graphs.ring(8)).step().plan.params) == 1
    refused(GraphError, "needs an undirected graph", simulated, policy(), graph=graphs.directed_ring(4))


def test_a_matching_is_made_lazy_if_needed():
    (W,) = simulated(pol.HeterogeneityAwareMatchings(1), algorithms.D2(), graphs.ring(8)).step().plan.params
    assert set(np.unique(W.to_dense())) <= {0.0, 0.25, 0.75, 1.0}  # (I + W) / 2
