"""Pairs without data: colors in turn, and an order planned from the graph; against theory and against each other."""

from functools import reduce
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import refused
from mixwise import graphs
from mixwise.context import Context
from mixwise.errors import ConfigError, MixingError
from mixwise.graphs import Graph, edge_coloring, random_matching
from mixwise.mixing import metropolis_hastings
from mixwise.needs import Needs
from mixwise.network import SimulatedNetwork
from mixwise.policies import Auto, AwarePairs, EdgeColoring, HeterogeneityAwareMatchings, Matchings, Pairs
from mixwise.policies.aware_pairs import Neighborhood
from mixwise.policies.edge_coloring import disagreement_left, fastest_order, rounds_that_fit
from planning import Planner
from strategies import connected_graphs

POLICIES = [EdgeColoring, Pairs]
GRAPHS = [
    graphs.ring(8), graphs.ring(7), graphs.torus(4, 4), graphs.star(6), graphs.social_network(), graphs.complete(9),
    graphs.random_connected(12, 0.3, seed=1), graphs.Graph(1, []),
]  # fmt: skip
EVEN, ODD = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 7), (1, 2), (3, 4), (5, 6))


def planned(policy, graph, mixings, needs=None):
    """The matrices of each of the first mixings."""
    planner = Planner(policy, SimulatedNetwork(graph), needs)
    assert not any(planner.looks(t) for t in range(mixings))  # no data is looked at
    return [planner.plan(t).params for t in range(mixings)]


def modeled_disagreement(plans):
    """Mean Tr Γ over the second half of the plans, where every mixing adds I − J before its rounds."""
    n = plans[0][0].n
    Gamma, seen = np.zeros((n, n)), []
    for rounds in plans:
        Gamma = Gamma + np.eye(n) - 1 / n
        for W in rounds:
            Gamma = W.to_dense().T @ Gamma @ W.to_dense()
        seen.append(np.trace(Gamma))
    return np.mean(seen[len(seen) // 2 :])


@pytest.mark.parametrize("policy", POLICIES)
def test_two_rounds_on_an_even_ring_are_even_odd_averaging(policy):
    for first, second in planned(policy(rounds=2), graphs.ring(8), 3):
        assert {tuple(first.edge_weights), tuple(second.edge_weights)} == {
            tuple(sorted([*edges, *((j, i) for i, j in edges)])) for edges in (EVEN, ODD)
        }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("rounds", [1, 3, None])
def test_every_round_is_a_matching_and_all_edges_that_matter_are_used(policy, graph, rounds):
    plans = planned(policy(rounds=rounds), graph, 40)
    assert {len(each) for each in plans} == {rounds or rounds_that_fit(graph)}
    used = {edge for each in plans for W in each for edge in W.edge_weights}
    assert used <= {arc for i, j in graph.edges for arc in ((i, j), (j, i))}
    assert graphs.Graph(graph.n, list(used)).is_connected
    for W in {W for each in plans for W in each}:
        assert max(W.graph.degrees) <= 1
        np.testing.assert_array_equal(W.to_dense() @ W.to_dense(), W.to_dense())  # a projection


def test_a_coloring_continues_where_the_last_mixing_stopped():
    torus = graphs.torus(4, 6)
    one_by_one = [W for (W,) in planned(EdgeColoring(rounds=1), torus, 12)]
    assert [W for rounds in planned(EdgeColoring(rounds=3), torus, 4) for W in rounds] == one_by_one
    assert (one_by_one[:4] * 3, len(set(one_by_one))) == (one_by_one, 4)


@pytest.mark.parametrize("graph", [graphs.hypercube(3), graphs.torus(4, 4)])
def test_by_default_a_mixing_on_a_hypercube_is_an_exact_average(graph):
    for policy in POLICIES:
        (rounds,) = planned(policy(), graph, 1)
        product = reduce(np.matmul, [W.to_dense() for W in rounds])
        np.testing.assert_allclose(product, 1 / graph.n, atol=1e-15)


@settings(max_examples=25)
@given(connected_graphs(min_nodes=3, max_nodes=7))
def test_up_to_five_colors_are_in_the_best_order(graph):
    matchings = edge_coloring(graph)
    if len(matchings) > 5:
        return

    def left(order):
        return disagreement_left([(metropolis_hastings(matching),) for matching in order] * 3, len(order))

    chosen, best = left(fastest_order(matchings)), min(map(left, permutations(matchings)))
    assert chosen == pytest.approx(best, rel=1e-2)  # the phase in which the noise begins fades, but not at once


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("rounds", [1, 2])
def test_planned_pairs_leave_no_more_than_colors_in_turn_do(graph, rounds):
    colors, pairs = (modeled_disagreement(planned(policy(rounds=rounds), graph, 120)) for policy in POLICIES)
    assert pairs <= 1.05 * colors  # on a star, repeating 32 mixings costs 4 %


def test_on_a_torus_the_better_order_of_the_same_four_matchings_is_taken():
    """Along one dimension, then along the other; twice along one and then twice along the other leaves 3 % more."""
    torus = graphs.torus(6, 6)
    pairs, colors = (planned(policy(rounds=2), torus, 64) for policy in (Pairs, EdgeColoring))
    assert {W for rounds in pairs for W in rounds} == {W for rounds in colors for W in rounds}
    a, b, c, d = {W: None for rounds in colors for W in rounds}
    along = [(W, X) for W in (a, c) for X in (b, d)]
    assert all(rounds in along or rounds[::-1] in along for rounds in pairs)
    assert modeled_disagreement(pairs) < 0.98 * modeled_disagreement([(a, c), (b, d)] * 32)


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_disagreement_that_is_left_over_by_dense_products(graph):
    plans = planned(Pairs(rounds=2), graph, 12)
    assert disagreement_left(plans, 6) == pytest.approx(modeled_disagreement(plans), rel=1e-9, abs=1e-12)


@given(connected_graphs(min_nodes=2), st.data())
def test_a_process_knows_the_rows_and_columns_of_its_nodes(graph, data):
    matching = random_matching(graph, 0, data.draw(st.integers(0, 99)))
    partner = np.array([(*matching.neighbors(i), -1)[0] for i in range(graph.n)])
    start = data.draw(st.integers(0, graph.n - 1))
    nodes = range(start, data.draw(st.integers(start + 1, graph.n)))
    known = Neighborhood(graph, nodes).matrix(partner[start : nodes.stop]).to_dense()
    own = np.isin(np.arange(graph.n), nodes)
    np.testing.assert_array_equal(known, np.where(own[:, None] | own, metropolis_hastings(matching).to_dense(), 0))


def test_a_schedule_repeats_its_last_32_mixings():
    social = graphs.social_network()
    plans = planned(Pairs(rounds=1), social, 130)
    assert plans[64:96] == plans[32:64] == plans[96:128]
    assert modeled_disagreement(plans) < 0.4 * modeled_disagreement(planned(EdgeColoring(rounds=1), social, 130))


def test_above_256_nodes_gamma_is_kept_on_the_edges_only():
    torus = graphs.torus(16, 18)
    (plans, colors) = (planned(policy(rounds=1), torus, 24) for policy in (Pairs, EdgeColoring))
    assert modeled_disagreement(plans) <= 1.02 * modeled_disagreement(colors)


@pytest.mark.parametrize("policy", [*POLICIES, Matchings])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_where_weights_must_be_symmetric_the_rounds_run_forth_and_back(policy, rounds):
    graph = graphs.random_connected(10, 0.4, seed=2)
    for plan in planned(policy(rounds=rounds), graph, 4, Needs(symmetric=True, lazy=True)):
        assert len(plan) == 2 * rounds - 1
        product = reduce(np.matmul, [W.to_dense() for W in plan])
        np.testing.assert_allclose(product, product.T, atol=1e-15)
        assert np.linalg.eigvalsh(product).min() > -1e-14


def test_random_matchings_of_one_mixing_are_drawn_independently():
    torus = graphs.torus(4, 6)
    one, three = planned(Matchings(), torus, 30), planned(Matchings(3), torus, 30)
    assert [rounds[0] for rounds in three] == [rounds[0] for rounds in one]
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert sum(rounds[a] == rounds[b] for rounds in three) <= 1


@pytest.mark.parametrize("policy", [*POLICIES, Matchings, AwarePairs, HeterogeneityAwareMatchings])
@pytest.mark.parametrize("rounds", [65, 10**9, 10**30])
def test_more_rounds_than_can_be_of_use_are_rejected_at_once(policy, rounds):
    rule = (
        f"^rounds = {rounds}; a mixing has at most 64 matchings here: .*; use fewer rounds, or policy: full-averaging"
    )
    refused(MixingError, rule, policy(rounds=rounds).init, Context(graphs.ring(8)))


def test_an_exact_average_on_a_long_path_is_within_the_limit():
    (rounds,) = planned(Pairs(rounds=100), graphs.grid(1, 100), 1)
    assert len(rounds) == 100


def test_more_messages_of_aware_pairs_than_can_be_of_use_are_rejected():
    rule = "^offers = 1000000000; more than 64 change nothing on 8 nodes"
    refused(MixingError, rule, AwarePairs(offers=10**9).init, Context(graphs.ring(8)))
    refused(ConfigError, "^iterations = 1000000000: input should be less than or equal to 10000", AwarePairs, None,
            iterations=10**9)  # fmt: skip


def test_a_budget_without_bound_gives_a_bounded_number_of_rounds():
    disconnected = Graph(4, [(0, 1), (2, 3)])  # the disagreement between the parts never falls
    assert Auto(budget=1e12).choose(Context(disconnected)).rounds <= 64
