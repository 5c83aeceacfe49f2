"""Graphs that change over time: exact averaging after the stated number of rounds, matchings, MATCHA, policies."""

from functools import reduce
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise.graphs as g
from builders import TWO_PAIRS, cases, laplacian, refused
from mixwise.errors import GraphError, MixingError
from mixwise.graphs import Graph, edge_sample, matching_decomposition, one_peer_exponential, random_matching
from mixwise.mixing import MatchaWeights, base_graph, matcha, metropolis_hastings, uniform
from mixwise.needs import Needs
from mixwise.network import SimulatedNetwork
from mixwise.policies import Cycle, EdgeSampling, Matcha, Matchings, RandomChoice
from planning import Planner
from strategies import connected_graphs, graphs


def multiplied(matrices) -> np.ndarray:
    return reduce(np.matmul, [W.to_dense() for W in matrices])


# --- one-peer exponential ---
@pytest.mark.parametrize("n", range(1, 33))
def test_one_peer_exponential_has_one_receiver_each_and_averages_exactly_if_n_is_a_power_of_two(n):
    sequence = one_peer_exponential(n)
    assert len(sequence) == max(1, np.ceil(np.log2(n)))
    for k, graph in enumerate(sequence):
        assert graph.directed
        assert {(j - i) % n for i, j in graph.edges} == ({2**k} if n > 1 else set())
        assert set(graph.degrees) == set(graph.in_degrees) == {min(1, n - 1)}
    if n & (n - 1) == 0:
        np.testing.assert_allclose(multiplied(map(uniform, sequence)), 1 / n, rtol=0, atol=1e-15)


# --- Base-(k+1) graphs ---
def floor_log(n: int, base: int) -> int:
    return max(p for p in range(n) if base**p <= n)


@pytest.mark.parametrize("peers", range(1, 6))
def test_base_graphs_average_exactly_for_every_number_of_nodes(peers):
    """The product is J, no node has more than k neighbors, and 2p + 1 rounds suffice if n < 2 (k + 1)^p, else 2p + 2.

    That is the length of the paper's simple construction, with p = ⌊log_{k+1} n⌋.
    """
    for n in range(peers + 1, 61):
        rounds = base_graph(n, peers)
        np.testing.assert_allclose(multiplied(rounds), 1 / n, rtol=0, atol=1e-12)
        assert all(W.is_symmetric and max(W.graph.degrees) <= peers for W in rounds)
        p = floor_log(n, peers + 1)
        assert len(rounds) <= 2 * p + (1 if n < 2 * (peers + 1) ** p else 2)


AUTHORS = [(17, 2, 5), (25, 3, 5), (34, 2, 6), (51, 2, 6), (59, 5, 5)]  # 34 = 2 · 17, 51 = 3 · 17: one round more
SMOOTH = [(2**10, 1, 10), (3**5, 2, 5), (12, 3, 2), (30, 4, 3), (9, 8, 1)]  # one round per factor


@pytest.mark.parametrize(("n", "peers", "rounds"), [*AUTHORS, *SMOOTH])
def test_base_graphs_are_as_short_as_the_authors_and_as_possible_for_smooth_numbers(n, peers, rounds):
    """In r rounds of k neighbors a value reaches (k + 1)^r nodes."""
    sequence = base_graph(n, peers)
    assert len(sequence) == rounds
    assert (n, peers, rounds) not in SMOOTH or (peers + 1) ** (rounds - 1) < n
    np.testing.assert_allclose(multiplied(sequence), 1 / n, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "peers"), [(4, 4), (4, 0), (1, 1), (4, 1.5)])
def test_base_graphs_reject_wrong_numbers(n, peers):
    refused(MixingError, f"n = {n}, peers = {peers}; .* needs whole numbers with 1 ≤ peers < n", base_graph, n, peers)


# --- matchings ---


@given(graph=graphs(1, 12, directed=False), t=st.integers(0, 1000))
def test_random_matching_is_maximal(graph, t):
    matching = random_matching(graph, 3, t)
    assert set(matching.edges) <= set(graph.edges)
    assert max(matching.degrees) <= 1
    assert all(matching.degrees[i] or matching.degrees[j] for i, j in graph.edges)
    assert matching == random_matching(graph, 3, t)


def test_random_matching_treats_the_edges_of_a_ring_alike():
    counts = sum(random_matching(g.ring(6), 0, t).adjacency.toarray() for t in range(2000))
    # By symmetry each edge has the same share q of draws; 5 deviations of √(q(1 − q)/2000) ≤ 0.0112 are not chance.
    shares = counts[counts > 0] / 2000
    assert len(shares) == 12
    assert np.ptp(shares) < 10 * 0.0112


@settings(max_examples=30)
@given(graph=graphs(1, 10), t=st.integers(0, 50))
def test_an_edge_sample_is_part_of_the_graph(graph, t):
    assert edge_sample(graph, 1.0, 0, t) == graph
    assert edge_sample(graph, 0.0, 0, t) == Graph(graph.n, [], graph.directed)
    assert set(edge_sample(graph, 0.4, 0, t).edges) <= set(graph.edges)


def test_edge_sample_keeps_each_edge_with_its_probability():
    draws, p = 2000, 0.3
    share = sum(edge_sample(g.ring(8), p, 1, t).adjacency.toarray() for t in range(draws)) / draws
    # 8 shares with a deviation of √(p(1 − p)/draws) each: 5 of them are not reached by chance.
    assert np.abs(share[share > 0] - p).max() < 5 * np.sqrt(p * (1 - p) / draws)


@pytest.mark.parametrize("function", [random_matching, matching_decomposition, g.edge_coloring])
def test_matchings_need_an_undirected_graph(function):
    refused(GraphError, rf"{function.__name__} needs an undirected graph.*; use Graph", function, g.directed_ring(4))


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_edge_sample_rejects_a_probability_out_of_range(probability):
    refused(GraphError, r"probability = .*; give a number from 0 to 1", edge_sample, g.ring(4), probability)


# --- MATCHA ---
def best_connectivity(matchings, total: float) -> float:
    """max λ₂(Σ p_j L_j) as a semidefinite program."""
    n, p, s = matchings[0].n, cp.Variable(len(matchings)), cp.Variable()
    mean = sum(p[j] * laplacian(matching) for j, matching in enumerate(matchings))
    # 𝟏𝟏ᵀ moves the eigenvalue 0 of 𝟏 out of the way, and the program has an interior.
    constraints = [mean + np.ones((n, n)) - s * np.eye(n) >> 0, cp.sum(p) <= total, p >= 0, p <= 1]
    cp.Problem(cp.Maximize(s), constraints).solve(solver=cp.CLARABEL)
    return float(s.value)


def connectivity(weights: MatchaWeights) -> float:
    mean = sum(p * laplacian(m) for p, m in zip(weights.probabilities, weights.matchings, strict=True))
    return float(np.linalg.eigvalsh(mean)[1])


@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("graph", [g.ring(9), g.torus(4, 4), g.random_connected(12), g.star(6)])
def test_matcha_connects_best_within_its_budget(graph, budget):
    weights = matcha(graph, budget)
    assert sum(weights.probabilities) <= budget * len(weights.matchings) + 1e-9
    assert all(0 <= p <= 1 for p in weights.probabilities)
    assert weights.connectivity == pytest.approx(connectivity(weights), rel=1e-9)
    assert weights.connectivity >= (1 - 2e-4) * weights.bound
    best = best_connectivity(weights.matchings, budget * len(weights.matchings))
    assert weights.connectivity == pytest.approx(best, rel=2e-4)


@settings(max_examples=15)
@given(graph=connected_graphs(2, 9), budget=st.floats(0.05, 1))
def test_matcha_is_at_least_as_connected_as_equal_probabilities(graph, budget):
    weights = matcha(graph, budget)
    equal = budget * float(np.linalg.eigvalsh(laplacian(graph))[1])
    assert weights.connectivity >= equal * (1 - 1e-9)
    assert weights.bound >= weights.connectivity * (1 - 1e-9)


def second_moment(weights: MatchaWeights, matrix) -> float:
    """‖E[W²] − J‖₂ over all subsets of matchings."""
    total = 0
    for on in product([False, True], repeat=len(weights.matchings)):
        chance = np.prod([p if used else 1 - p for p, used in zip(weights.probabilities, on, strict=True)])
        W = matrix(on)
        total = total + chance * W @ W
    return float(np.linalg.norm(total - 1 / weights.n, 2))


@pytest.mark.parametrize(
    ("graph", "budget"), [(g.ring(8), 0.5), (g.torus(3, 3), 0.4), (g.star(5), 0.7), (g.ring(6), 1.0)]
)
def test_matcha_takes_the_best_step(graph, budget):
    weights = matcha(graph, budget)

    def uncut(alpha: float):
        def matrix(on):
            L = sum((laplacian(m) for m, used in zip(weights.matchings, on, strict=True) if used), np.zeros((1, 1)))
            return np.eye(graph.n) - alpha * L

        return matrix

    assert weights.rho == pytest.approx(second_moment(weights, uncut(weights.alpha)), abs=1e-9)
    # 1e-7: ρ has a kink at its least, where an error of 1e-8 in α is one of 4e-8 in ρ.
    assert all(weights.rho <= second_moment(weights, uncut(alpha)) + 1e-7 for alpha in np.linspace(0, 0.5, 26))
    if weights.alpha * max(graph.degrees) <= 1:  # then nothing is ever cut
        cut = second_moment(weights, lambda on: weights.weights(list(on)).to_dense())
        assert cut == pytest.approx(weights.rho, abs=1e-9)


def test_matcha_of_all_edges_of_a_large_graph_takes_the_best_constant_step():
    """With budget 1, W = I − αL always: the best α is 2 / (λ₂ + λ_n), which leaves ((λ_n − λ₂) / (λ_n + λ₂))²."""
    graph = g.random_regular(402, 4)  # more than 400 nodes: eigenvalues by Lanczos
    weights, values = matcha(graph, 1.0), np.linalg.eigvalsh(laplacian(graph))
    assert weights.alpha == pytest.approx(2 / (values[1] + values[-1]), rel=1e-5)
    assert weights.rho == pytest.approx(((values[-1] - values[1]) / (values[-1] + values[1])) ** 2, rel=1e-6)


@given(graph=connected_graphs(1, 10), budget=st.floats(0.05, 1), t=st.integers(0, 100))
@settings(max_examples=20)
def test_every_draw_of_matcha_is_symmetric_on_the_graph(graph, budget, t):
    W = matcha(graph, budget).draw(0, t)  # a MixingMatrix: doubly stochastic and nowhere negative
    assert W.is_symmetric
    assert set(W.graph.edges) <= set(graph.edges)


def test_matcha_keeps_its_budget_over_time():
    graph, draws = g.social_network(), 600
    weights = matcha(graph, 0.3)
    messages = [W.messages for W in matrices(planner(Matcha(0.3), graph, seed=1), draws)]
    expected = 2 * sum(p * len(m.edges) for p, m in zip(weights.probabilities, weights.matchings, strict=True))
    pairs = zip(weights.probabilities, weights.matchings, strict=True)
    spread = 2 * np.sqrt(sum(p * (1 - p) * len(m.edges) ** 2 for p, m in pairs))
    assert abs(np.mean(messages) - expected) < 5 * spread / np.sqrt(draws)
    assert np.mean(messages) < 2 * len(graph.edges) / 2


def test_matcha_rejects_wrong_budgets_and_graphs():
    refused(MixingError, r"budget = 0; .* lies in \(0, 1\]", matcha, g.ring(4), 0)
    refused(MixingError, "budget = nan", matcha, g.ring(4), float("nan"))
    refused(GraphError, "2 components, but MATCHA needs a connected graph; add edges", matcha, TWO_PAIRS, 0.5)
    refused(GraphError, "needs an undirected graph", matcha, g.directed_ring(3), 0.5)


# --- policies ---
POLICIES = [
    (Cycle("base-graph"), g.complete(6)),
    (RandomChoice([metropolis_hastings(g.ring(6)), uniform(g.complete(6))]), g.complete(6)),
    (Matchings(), g.torus(3, 2)),
    (Matcha(0.5), g.complete(6)),
    (EdgeSampling(0.5), g.ring(6)),
]


def planner(policy, graph, needs=None, seed=4) -> Planner:
    return Planner(policy, SimulatedNetwork(graph), needs, seed=seed)


def matrices(planner, steps: int = 12) -> list:
    plans = [planner.plan(t) for t in range(steps)]
    assert all(len(plan.params) == 1 and plan.updates is None for plan in plans)
    return [plan.params[0] for plan in plans]


@pytest.mark.parametrize(("policy", "graph"), POLICIES)
def test_plans_depend_on_t_and_the_seed_alone(policy, graph):
    """Another process that plans in another order gets the same matrices; nothing has to be saved."""
    first, second = planner(policy, graph), planner(policy, graph)
    backwards = [second.plan(t).params[0] for t in reversed(range(12))][::-1]
    assert matrices(first) == backwards
    assert (first.state.shared, first.state.rows) == ({}, {})
    assert not any(first.looks(t) for t in range(12))
    assert (matrices(planner(policy, graph, seed=5)) == backwards) == isinstance(policy, Cycle)


@pytest.mark.parametrize(("policy", "graph"), POLICIES[2:])
def test_drawn_weights_change_and_become_lazy_if_needed(policy, graph):
    plain = matrices(planner(policy, graph))
    assert len(set(plain)) > 1
    for W, slow in zip(plain, matrices(planner(policy, graph, Needs(symmetric=True, lazy=True))), strict=True):
        np.testing.assert_allclose(slow.to_dense(), (np.eye(6) + W.to_dense()) / 2, atol=1e-15)


@cases(
    "policy, turns",
    (Cycle(base_graph(5, 2)), base_graph(5, 2)),
    (Cycle("base-graph", peers=2), base_graph(5, 2)),
    (Cycle("one-peer-exponential"), tuple(map(uniform, one_peer_exponential(5)))),
)
def test_a_cycle_takes_turns(policy, turns):
    cycle = planner(policy, g.ring(5))
    assert matrices(cycle, 2 * len(turns)) == [*turns, *turns]
    assert policy.matrices(cycle.state) == turns


def test_edge_sampling_is_metropolis_hastings_on_the_active_edges():
    for t, W in enumerate(matrices(planner(EdgeSampling(0.6), g.torus(3, 4), seed=5))):
        assert metropolis_hastings(edge_sample(g.torus(3, 4), 0.6, 5, t)) == W


@cases(
    "make, error, message",
    (lambda: Cycle([uniform(g.ring(3)), uniform(g.ring(4))]), MixingError, r"for \[3, 4\] nodes"),
    (lambda: planner(Matchings(), g.directed_ring(4)), GraphError, "undirected"),
    (lambda: planner(EdgeSampling(0.5), g.directed_ring(4)), MixingError, "undirected"),
)
def test_policies_reject_wrong_values_before_the_first_plan(make, error, message):
    refused(error, message, make)
