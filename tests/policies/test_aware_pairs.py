"""Pairs agreed on by offers: by neighbors only, one partner each, whatever the number of nodes and their names."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import normal_rows
from mixwise import graphs
from mixwise.network import Arrivals, SimulatedNetwork
from mixwise.network.traffic import ROWS
from mixwise.policies import AwarePairs
from mixwise.sketch import CountSketch, ExactSketch
from planning import Planner
from strategies import connected_graphs


class Recording(SimulatedNetwork):
    """A network that notes who sends to whom, and has no way to reach all nodes at once."""

    def __init__(self, graph):
        super().__init__(graph)
        self.used = set()

    def exchange(self, messages, graph, *, cargo=ROWS):
        self.used |= set(zip(graph.arcs.senders.tolist(), graph.arcs.receivers.tolist(), strict=True))
        return super().exchange(messages, graph, cargo=cargo)

    def gather(self, rows):
        raise AssertionError("gather is not a message between neighbors")

    average = gather


def planned(policy, graph, X, t=0, seed=0):
    return Planner(policy, SimulatedNetwork(graph), seed=seed).plan(t, rows=torch.from_numpy(X)).params


def greedy(graph, X):
    """The edges, farthest ends first, whose ends are both still free."""
    free, taken = set(range(graph.n)), []
    for i, j in sorted(graph.edges, key=lambda edge: -((X[edge[0]] - X[edge[1]]) ** 2).sum()):
        if {i, j} <= free and (X[i] != X[j]).any():
            free -= {i, j}
            taken.append((i, j))
    return tuple(sorted(taken))


@given(connected_graphs(min_nodes=2), st.integers(0, 10_000))
def test_without_iterations_the_pairs_are_those_of_a_greedy_matching(graph, seed):
    X = normal_rows(graph.n, 4, seed)
    (W,) = planned(AwarePairs(1, ExactSketch(), offers=graph.n, iterations=0), graph, X)
    assert W.graph.edges == greedy(graph, X)


def heaviest(graph, X):
    """The pairs that remove most together."""
    i, j = graph.edge_array.T
    return graphs.heaviest_matching(graph, ((X[i] - X[j]) ** 2).sum(axis=1)).edges


@given(connected_graphs(min_nodes=2), st.integers(0, 10_000))
def test_on_a_tree_messages_across_it_find_the_heaviest_matching(graph, seed):
    tree, X = graphs.spanning_tree(graph), normal_rows(graph.n, 4, seed)
    (W,) = planned(AwarePairs(1, ExactSketch(), offers=1, iterations=graph.n), tree, X)
    assert W.graph.edges == heaviest(tree, X)


@settings(max_examples=10)
@given(
    st.sampled_from([graphs.ring(8), graphs.torus(4, 4), graphs.grid(3, 4), graphs.hypercube(3)]), st.integers(0, 99)
)
def test_on_a_bipartite_graph_enough_messages_find_the_heaviest_matching(graph, seed):
    X = normal_rows(graph.n, 4, seed)
    (W,) = planned(AwarePairs(1, ExactSketch(), offers=1, iterations=800), graph, X)
    assert W.graph.edges == heaviest(graph, X)


def removed(X, edges):
    return sum(((X[i] - X[j]) ** 2).sum() for i, j in edges)


@pytest.mark.parametrize("graph", [graphs.social_network(), graphs.complete(16)], ids=["social", "complete"])
def test_by_default_pairs_remove_nearly_as_much_as_the_heaviest_matchings(graph):
    """On average over random rows on graphs with odd cycles."""
    policies = {"default": AwarePairs(1, ExactSketch()), "offers alone": AwarePairs(1, ExactSketch(), iterations=0)}
    share = dict.fromkeys(policies, 0.0)
    for seed in range(10):
        X = normal_rows(graph.n, 30, seed)
        for name, policy in policies.items():
            share[name] += removed(X, planned(policy, graph, X)[0].graph.edges) / removed(X, heaviest(graph, X)) / 10
    assert share["default"] > 0.97
    assert share["offers alone"] < 0.92


@settings(max_examples=30)
@given(connected_graphs(min_nodes=2), st.integers(0, 10_000))
def test_a_round_knows_what_the_rounds_before_it_have_averaged(graph, seed):
    X = normal_rows(graph.n, 4, seed)
    first, second = planned(AwarePairs(2, ExactSketch(), offers=graph.n, iterations=0), graph, X)
    mixed = first.to_dense().T @ X
    assert not set(first.graph.edges) & set(second.graph.edges)  # nothing is left to average there
    assert removed(mixed, second.graph.edges) == pytest.approx(removed(mixed, greedy(graph, mixed)), rel=0.5)


@given(connected_graphs(min_nodes=2), st.integers(0, 10_000), st.integers(1, 4))
def test_a_node_has_one_partner_at_most_however_few_the_offers(graph, seed, offers):
    (W,) = planned(AwarePairs(1, offers=offers), graph, normal_rows(graph.n, 3, seed))
    assert max(W.graph.degrees) <= 1
    assert set(W.graph.edges) <= set(graph.edges)


@given(connected_graphs(min_nodes=2), st.integers(0, 10_000))
def test_other_names_of_the_nodes_give_the_same_pairs(graph, seed):
    order = np.random.default_rng(seed).permutation(graph.n)
    X, policy = normal_rows(graph.n, 4, seed), AwarePairs(1)
    moved_X = X[np.argsort(order)]  # node a is now called order[a]
    (W,), (moved,) = planned(policy, graph, X), planned(policy, graph.permuted(order.tolist()), moved_X)
    assert {tuple(sorted((order[i], order[j]))) for i, j in W.graph.edges} == set(moved.graph.edges)


def test_among_equals_the_seed_decides_and_not_the_number_of_a_node():
    """On a star whose leaves are equally far from the center, every leaf gets its turn."""
    star, X = graphs.star(9), np.eye(9, 1)
    chosen = {
        planned(AwarePairs(1, ExactSketch()), star, X, t, seed)[0].graph.edges for seed in (0, 1) for t in range(40)
    }
    assert len(chosen) == 8


def test_every_message_goes_along_an_edge():
    network = Recording(graphs.social_network())
    Planner(AwarePairs(2), network).plan(0, rows=torch.from_numpy(normal_rows(32, 200)))
    assert network.used == set(
        zip(network.graph.arcs.senders.tolist(), network.graph.arcs.receivers.tolist(), strict=True)
    )
    assert network.traffic.parameters == 0


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_bytes_of_a_node_do_not_depend_on_the_number_of_nodes(rounds):
    sent = {}
    for side in (8, 64):
        network = SimulatedNetwork(graphs.torus(side, side))
        Planner(AwarePairs(rounds, CountSketch(50), offers=5, iterations=7), network).plan(
            0, rows=torch.from_numpy(normal_rows(side**2, 60))
        )
        sent[side] = network.traffic.sketches / side**2
    assert sent == dict.fromkeys((8, 64), rounds * 4 * ((50 + 7) * 4 + 5))


def test_equal_rows_are_left_alone():
    (W,) = planned(AwarePairs(1), graphs.ring(6), np.ones((6, 3)))
    np.testing.assert_array_equal(W.to_dense(), np.eye(6))


def test_a_neighbor_whose_sketch_is_lost_is_not_considered():
    """On a path, the middle is farthest from node 0, whose sketch it misses, and pairs with node 2."""

    class MissesOne(SimulatedNetwork):
        def exchange(self, messages, graph, *, cargo=ROWS):
            lost = graph.arcs.senders + graph.arcs.receivers == 1  # also the order of the receivers
            rows = super().exchange(messages, graph, cargo=cargo).rows
            return Arrivals(rows.masked_fill(torch.from_numpy(lost)[:, None], 0), lost)

    rows = torch.tensor([[9.0], [0.0], [1.0]])
    first, second = Planner(AwarePairs(2, ExactSketch()), MissesOne(graphs.chain(3))).plan(0, rows=rows).params
    assert first.graph.edges == ((1, 2),)
    assert second.graph.edges == ()  # 1 and 2 are equal now, and 0 is still not heard


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_choosing_pairs_leaves_the_rows_as_they_are(dtype):
    X = torch.from_numpy(normal_rows(8, 4, 0)).to(dtype)
    before = X.clone()
    Planner(AwarePairs(3, ExactSketch()), SimulatedNetwork(graphs.ring(8))).plan(0, rows=X)
    assert torch.equal(X, before)
