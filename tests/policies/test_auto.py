"""The choices of `auto`: by links it saves time, by a budget it uses the bytes."""

import pytest

from mixwise import graphs
from mixwise.network import Link, Links
from mixwise.policies import Auto, AwarePairs, Pairs, forecast
from mixwise.protocols import Context, Needs

SLOW = Links(Link(0.02, 1e6))
IRREGULAR = graphs.parse("random-connected:10,keep=0.4,seed=1")


@pytest.mark.parametrize(
    ("budget", "wire", "graph", "rounds"),
    [
        (1.0, 1.0, graphs.ring(16), 2),
        (2.0, 1.0, graphs.ring(16), 4),
        (1.0, 0.25, graphs.ring(16), 8),
        (0.1, 1.0, graphs.ring(16), 1),  # never less than one
        (1.0, 1.0, graphs.complete(8), 3),  # three matchings are an exact average already
        (100.0, 1.0, graphs.torus(4, 4), 4),
    ],
)
def test_a_budget_of_bytes_is_used_as_far_as_it_helps(budget, wire, graph, rounds):
    assert Auto(budget=budget).choose(Context(graph, row_bytes=1e6, wire_bytes=wire * 1e6)) == Pairs(rounds)


@pytest.mark.parametrize("budget", [0.7, 1.0, 1.5])
def test_a_budget_is_kept_on_any_graph(budget):
    chosen = Auto(budget=budget).choose(Context(IRREGULAR, row_bytes=1e3, wire_bytes=1e3))
    allowed = budget * 2 * len(IRREGULAR.edge_array) / IRREGULAR.n * 1e3
    assert forecast(chosen, IRREGULAR, 1e3).bytes <= allowed


@pytest.mark.parametrize("graph", [graphs.ring(16), IRREGULAR])
def test_with_links_the_fewest_rounds_that_leave_a_fifth_of_a_step(graph):
    chosen = Auto().choose(Context(graph, links=SLOW, row_bytes=1e4, wire_bytes=1e4))
    assert isinstance(chosen, Pairs)
    left = {r: forecast(Pairs(r), graph, 1e4).disagreement for r in (chosen.rounds, chosen.rounds - 1) if r}
    assert left.pop(chosen.rounds) <= 0.2
    assert all(more > 0.2 for more in left.values())


def test_pairs_are_chosen_by_the_data_on_irregular_graphs_where_that_takes_hardly_longer():
    large, small = 4e8, 1e6
    lan = Links(Link(1e-4, 1.25e9))

    def chosen(graph, size, links, **needs):
        return Auto().choose(Context(graph, needs=Needs(**needs), links=links, row_bytes=size, wire_bytes=size))

    assert isinstance(chosen(IRREGULAR, large, lan), AwarePairs)
    assert isinstance(chosen(IRREGULAR, small, lan), Pairs)
    assert isinstance(chosen(IRREGULAR, small, SLOW), Pairs)
    assert isinstance(chosen(graphs.torus(6, 6), large, lan), Pairs)
    assert isinstance(chosen(IRREGULAR, large, lan, symmetric=True), Pairs)  # D²: rounds must run forth and back
    assert isinstance(Auto().choose(Context(IRREGULAR, row_bytes=large, wire_bytes=large)), Pairs)  # links unknown


def test_rounds_that_run_forth_and_back_count_twice():
    context = Context(graphs.ring(16), needs=Needs(symmetric=True), row_bytes=1e6, wire_bytes=1e6)
    chosen = Auto(budget=2.5).choose(context)
    assert chosen == Pairs(3)  # M₁ M₂ M₃ M₂ M₁
    assert forecast(chosen, context.graph, 1e6, needs=context.needs).rounds == 5


def test_one_round_to_all_neighbors_where_that_is_enough():
    """On a complete graph it is an exact average; pairs would need three rounds for that, and two to be good enough."""
    graph = graphs.complete(8)
    chosen = Auto().choose(Context(graph, links=SLOW, row_bytes=1e4, wire_bytes=1e4))
    assert forecast(chosen, graph, 1e4).rounds == 1
    assert forecast(chosen, graph, 1e4).disagreement < 1e-9
    assert forecast(Pairs(1), graph, 1e4).disagreement > 0.2
