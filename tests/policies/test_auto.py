"""The choices of `auto`: by links it saves time, by a budget it uses the bytes; and the forecasts behind them."""

import numpy as np
import pytest
import torch

from builders import refused
from mixwise import graphs
from mixwise.errors import MixingError
from mixwise.mixing import exact_average, full_averaging, metropolis_hastings
from mixwise.network import Link, Links, SimulatedNetwork
from mixwise.policies import Auto, AwarePairs, HeterogeneityAware, Pairs, forecast
from mixwise.protocols import Context, Needs
from mixwise.sketch import CountSketch

SLOW = Links(Link(0.02, 1e6))
IRREGULAR = graphs.parse("random-connected:10,keep=0.4,seed=1")


@pytest.mark.parametrize("symmetric", [False, True])
def test_it_is_pairs_where_possible_and_otherwise_gme_of_updates_and_parameters(symmetric):
    each = graphs.ring(4), graphs.star(4), graphs.directed_ring(4)
    chosen = [Auto().choose(Context(graph, needs=Needs(symmetric=symmetric))) for graph in each]
    assert chosen == [Pairs(), Pairs(), HeterogeneityAware(objective="both", regularization=0.02)]


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


@pytest.mark.parametrize(
    ("graph", "enough"), [(graphs.ring(9), 0.3), (IRREGULAR, 0.52), (graphs.parse("social"), 0.52)]
)
def test_with_links_the_fewest_rounds_that_leave_little_of_what_a_step_adds(graph, enough):
    chosen = Auto().choose(Context(graph, links=SLOW, row_bytes=1e4, wire_bytes=1e4))
    assert isinstance(chosen, Pairs)
    left = {r: forecast(Pairs(r), graph, 1e4).disagreement for r in (chosen.rounds, chosen.rounds - 1) if r}
    assert left.pop(chosen.rounds) <= enough
    assert all(more > enough for more in left.values())


@pytest.mark.parametrize("graph", [graphs.ring(16), graphs.ring(32), graphs.torus(6, 6)])
def test_with_links_an_exact_average_that_takes_at_most_three_times_as_long(graph):
    chosen = Auto().choose(Context(graph, links=SLOW, row_bytes=1e4, wire_bytes=1e4))
    assert forecast(chosen, graph, 1e4).disagreement < 1e-12
    assert forecast(Pairs(chosen.rounds // 3 - 1), graph, 1e4).disagreement > 0.3


def test_with_links_no_exact_average_that_would_take_much_longer():
    graph = graphs.torus(4, 16)  # 2 + 8 rounds
    chosen = Auto().choose(Context(graph, links=SLOW, row_bytes=1e4, wire_bytes=1e4))
    assert forecast(chosen, graph, 1e4).rounds < 10


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
    assert forecast(Pairs(1), graph, 1e4).disagreement > 0.3


# --- forecasts: against closed forms, and as `mixwise plan` prints them ---
@pytest.mark.parametrize("graph", [graphs.ring(8), graphs.star(6)])
def test_the_disagreement_of_fixed_weights_is_that_of_the_stationary_distribution(graph):
    """Γ = Σ_k (Wᵀ)ᵏ (I − J) Wᵏ, over k ≥ 1."""
    W, n = metropolis_hastings(graph), graph.n
    power, Gamma = W.to_dense() - 1 / n, np.zeros((n, n))
    for _ in range(400):
        Gamma, power = Gamma + power.T @ power, power @ W.to_dense()
    assert forecast(W, graph, 1000).disagreement == pytest.approx(np.trace(Gamma) / n, rel=0.2)


def test_rounds_rows_bytes_and_seconds_are_counted():
    ring = graphs.ring(8)
    found = forecast("metropolis-hastings", ring, 1000, SLOW)
    assert (found.rounds, found.rows, found.bytes, found.seconds) == pytest.approx((1, 2, 2000, 0.021))
    found = forecast(Pairs(2), ring, 1000, SLOW)
    assert (found.rounds, found.rows, found.bytes, found.seconds) == pytest.approx((2, 2, 2000, 0.042))
    found = forecast(AwarePairs(1, CountSketch(10), offers=3, iterations=0), ring, 1000, SLOW)
    assert found.bytes == pytest.approx(found.rows * 1000 + 2 * (40 + 3))
    assert found.seconds == pytest.approx(0.021 + 0.02004 + 3 * 0.020001)
    assert forecast(full_averaging(ring), ring, 1000).disagreement == pytest.approx(0, abs=1e-12)


def test_an_average_over_all_nodes_is_forecast_as_an_all_reduce():
    ring = graphs.ring(8)
    found = forecast(full_averaging(ring), ring, 1e6, SLOW)
    assert (found.rows, found.bytes, found.seconds) == pytest.approx((14 / 8, 14 / 8 * 1e6, 14 * (0.02 + 0.125)))


def simulated(rounds, wire_dtype, step_size):
    """The disagreement that is left after the rounds of every step, in float32, and by a network that rounds rows."""
    graph = rounds[0].graph
    network = SimulatedNetwork(graph, wire_dtype=wire_dtype)
    stream = torch.Generator().manual_seed(1)
    X = (torch.randn(1, 5000, generator=stream) / step_size).repeat(16, 1)
    left = []
    for _ in range(30):
        X += torch.randn(X.shape, generator=stream)
        for W in rounds:
            X = network.mix(X, W)
        left.append(float((X - X.mean(0)).square().mean()))
    return np.mean(left[15:])


@pytest.mark.parametrize("step_size", [0.1, 0.03, 0.003])
@pytest.mark.parametrize(
    ("policy", "rounds"),
    [
        (Pairs(8), exact_average(graphs.ring(16))),  # nothing is left but what rounding leaves
        ("metropolis-hastings", (metropolis_hastings(graphs.ring(16)),)),
    ],
    ids=["exact average", "Metropolis-Hastings"],
)
def test_the_disagreement_that_rounded_rows_leave_is_that_of_a_simulation(policy, rounds, step_size):
    ring = graphs.ring(16)
    for wire_dtype in (torch.int8, torch.bfloat16):
        found = forecast(policy, ring, 1e6, wire_dtype=wire_dtype, step_size=step_size).disagreement
        assert found == pytest.approx(simulated(rounds, wire_dtype, step_size), rel=0.2)


def test_a_step_has_a_size():
    refused(MixingError, "step_size = 0; give the size of a step", forecast, Pairs(1), graphs.ring(4), 1, step_size=0)


def test_plan_prints_the_alternatives_and_marks_the_choice_for_the_links(mixwise):
    told = mixwise("plan", "ring:9", "--model-size", "1000", "--latency", "10").stdout.splitlines()
    assert [line.split()[0] for line in told[1:3]] == ["metropolis-hastings", "pairs"]
    assert [line.split()[:4] for line in told if "(auto)" in line] == [["pairs", "(auto)", "int8", "2"]]
    assert told[-1].split() == ["all-reduce", "float32", "–", "0.00711", "0.106", "0"]  # 16/9 of 4 kB, in 8 messages
    told = mixwise("plan", "star:5", "--model-size", "100000000", "--latency", "0").stdout.splitlines()
    assert [line.split()[:3] for line in told if "(auto)" in line] == [["aware-pairs", "(auto)", "int8"]]


@pytest.mark.parametrize(("step_size", "least", "most"), [(0.03, 0.01, 0.2), (0.003, 0.5, 20)])
def test_plan_tells_what_rounding_leaves_of_an_exact_average(mixwise, step_size, least, most):
    told = mixwise("plan", "ring:8", "--step-size", str(step_size)).stdout.splitlines()
    (exact,) = (line.split() for line in told if "(auto)" in line)
    assert exact[:4] == ["pairs", "(auto)", "int8", "4"]
    assert least < float(exact[-1]) < most  # 1e-31 before rounding
