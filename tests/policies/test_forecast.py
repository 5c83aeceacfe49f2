"""Forecasts of cost and disagreement: against closed forms, and as `mixwise plan` prints them."""

import numpy as np
import pytest

from mixwise import graphs
from mixwise.mixing import full_averaging, metropolis_hastings
from mixwise.network import Link, Links
from mixwise.policies import AwarePairs, Pairs, forecast
from mixwise.sketch import CountSketch

LINKS = Links(Link(0.02, 1e6))


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
    found = forecast("metropolis-hastings", ring, 1000, LINKS)
    assert (found.rounds, found.rows, found.bytes, found.seconds) == pytest.approx((1, 2, 2000, 0.021))
    found = forecast(Pairs(2), ring, 1000, LINKS)
    assert (found.rounds, found.rows, found.bytes, found.seconds) == pytest.approx((2, 2, 2000, 0.042))
    found = forecast(AwarePairs(1, CountSketch(10), offers=3, iterations=0), ring, 1000, LINKS)
    assert found.bytes == pytest.approx(found.rows * 1000 + 2 * (40 + 3))
    assert found.seconds == pytest.approx(0.021 + 0.02004 + 3 * 0.020001)
    assert forecast(full_averaging(ring), ring, 1000).disagreement == pytest.approx(0, abs=1e-12)


def test_plan_prints_the_alternatives_and_marks_the_choice_for_the_links(mixwise):
    told = mixwise("plan", "ring:9", "--model-size", "1000", "--latency", "10").stdout.splitlines()
    assert [line.split()[0] for line in told[1:3]] == ["metropolis-hastings", "pairs"]
    assert [line.split()[:4] for line in told if "(auto)" in line] == [["pairs", "(auto)", "int8", "3"]]
    told = mixwise("plan", "star:5", "--model-size", "100000000", "--latency", "0").stdout.splitlines()
    assert [line.split()[:3] for line in told if "(auto)" in line] == [["aware-pairs", "(auto)", "int8"]]
