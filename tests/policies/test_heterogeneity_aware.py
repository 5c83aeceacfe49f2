"""Heterogeneity-aware weights: every option against the rules of its docstring, and with algorithms that need more."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise.mixing as mx
from builders import random_rows, simulated, stepped, well_conditioned
from mixwise.algorithms import D2, DSGD, EXTRA, GradientTracking, QuasiGlobalMomentum
from mixwise.errors import MixingError
from mixwise.graphs import Graph, complete, random_connected, ring
from mixwise.needs import Needs
from mixwise.network import SimulatedNetwork
from mixwise.policies import (
    Alternating,
    AwarePairs,
    HeterogeneityAware,
    HeterogeneityAwareMatchings,
    Look,
    Pairs,
    Product,
)
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch
from mixwise.tasks import random_quadratics
from mixwise.training import driver
from planning import Planner, gram_of, reloaded

N, D, MIXINGS = 8, 5, 12
GRAPH = random_connected(N, keep=0.5, seed=3)
EXACT = ExactSketch()
NOISELESS = well_conditioned(N, D, seed=1)
OTHER = mx.metropolis_hastings(GRAPH)
CHANGING = Alternating([mx.metropolis_hastings(ring(N)), mx.uniform(complete(N))])


def make(algorithm, policy, graph=GRAPH, **options):
    return simulated(policy, algorithm, graph, **{"task": NOISELESS, "lr": 0.03, **options})


# --- every option, alone and with others ---
def left(W, Gamma):
    """Tr(WᵀΓW) / Tr Γ."""
    return np.trace(W.to_dense().T @ Gamma @ W.to_dense()) / np.trace(Gamma)


def rules(
    seen, graphs, needs, *, period=1, alternate_with=None, objective="updates", balance=0.1, smoothing=0.0, growth=None,
    drop_below=0.0, stochastic="doubly", symmetric=False, **solver,
):  # fmt: skip
    """For each mixing with U, G and X′: how often it gathers, Γ, the weights, and whether they are new."""
    W = Gamma = made_for = None
    looked, unsettled, error = -1, False, 0.0
    for t, (U, G, X) in enumerate(seen):
        graph, others, gathers, solves = graphs[t % len(graphs)], alternate_with is not None and t % 2 == 1, 0, False
        # Once per period, and again until something has moved; but not for weights that would never be used.
        if (t // period > looked // period or unsettled) and not (others and (period == 1 or unsettled)):
            still = objective != "parameters" and not U.any()
            new = mx.gram_matrix(G if still else X if objective == "parameters" else U)
            if objective == "both" and not still:
                new = new + balance * mx.gram_matrix(X)
            fresh = Gamma is None or still or unsettled  # gradients have another unit
            Gamma = new if fresh else smoothing * Gamma + (1 - smoothing) * new
            gathers, looked, unsettled = 2 if still or objective == "both" else 1, t, still
        if gathers or not others:
            grown = W is None or growth is None or unsettled or left(W, Gamma) > growth * max(error, 1e-3)
            solves = graph != made_for or (gathers > 0 and grown)
        if solves:
            options = {"kind": stochastic, "symmetric": symmetric or needs.symmetric, **solver}
            W = mx.minimize_gme(Gamma, graph, **options).W
            if drop_below:
                kept = [arc for arc, weight in W.edge_weights.items() if weight >= drop_below]
                W = mx.minimize_gme(Gamma, Graph(N, kept, graph.directed), **options).W
            if stochastic == "sender":
                half = (W.weights + mx.uniform_sender(W.graph).weights) / 2
                W = mx.MixingMatrix(W.graph, half, "sender")
            W = mx.lazy(W) if needs.lazy else W
            made_for, error = graph, left(W, Gamma)
        yield gathers, Gamma, alternate_with if others else W, solves


KINDS = [{}, {"symmetric": True}, {"stochastic": "sender", "regularization": 0.3}, {"regularization": 0.05}]
OPTIONS = {
    "period": st.integers(1, 7),
    "alternate_with": st.just(OTHER),
    "objective": st.sampled_from(["parameters", "both"]),
    "balance": st.just(2.0),
    "smoothing": st.sampled_from([0.5, 0.9]),
    "growth": st.sampled_from([1.0, 1.1, 3.0]),
    "drop_below": st.sampled_from([0.05, 0.15, 0.3]),
    "graphs": st.just(CHANGING),
    "tolerance": st.just(0.1),
}
RUNS = {
    "kind": st.sampled_from(KINDS),
    "options": st.fixed_dictionaries({}, optional=OPTIONS),
    "needs": st.sampled_from([Needs(), Needs(symmetric=True), Needs(symmetric=True, lazy=True)]),
    "graph": st.sampled_from([GRAPH, complete(N)]),
    "d": st.sampled_from([D, N + 1]),  # fewer numbers than nodes: the sketches are kept, otherwise Γ
    "speed": st.sampled_from([0.0, 0.05, 1.0]),  # of the data
    "still": st.sets(st.integers(0, MIXINGS - 1), max_size=4),  # mixings in which the optimizer has not moved
    "stop": st.integers(1, MIXINGS - 1),  # where the run is interrupted
}


@settings(max_examples=120)
@given(**RUNS)
def test_plans_follow_the_rules(kind, options, needs, graph, d, speed, still, stop):
    needs = Needs() if "stochastic" in kind else needs
    policy, known = HeterogeneityAware(sketch=EXACT, **kind, **options), {**kind, **options}
    first, second = random_rows(2, N * d, 0).reshape(2, N, d)
    moved = [(first + speed * t * second) * (t not in still) for t in range(MIXINGS)]
    seen = [(U, random_rows(N, d, 50 + t), random_rows(N, d, 90 + t)) for t, U in enumerate(moved)]
    graphs = [ring(N), complete(N)] if known.pop("graphs", None) else [graph]
    planner = Planner(policy, SimulatedNetwork(graph), needs)
    for t, (gathers, Gamma, W, solves) in enumerate(rules(seen, graphs, needs, **known)):
        if t == stop:
            state, network = reloaded(planner.state, range(N)), planner.network
            planner = Planner(policy, network, needs)
            planner.state.load(state)
        before, (U, G, X) = planner.network.traffic.sketches, (rows.clone() for rows in seen[t])
        assert planner.looks(t) == (gathers > 0)
        plan = planner.plan(t, U if gathers else None, G, X)  # at other mixings there are no updates to read
        assert plan.params == (W,)
        assert bool(plan.solves) == solves
        if solves:
            assert plan.solves[0].objective == pytest.approx(left(plan.solves[0].W, Gamma) * np.trace(Gamma), rel=1e-8)
        assert planner.network.traffic.sketches - before == gathers * N * (N - 1) * d * 8
        for rows in (U, G, X):
            rows.zero_()  # mixing changes the rows, but not what was seen
        np.testing.assert_allclose(planner.gram, Gamma, rtol=1e-12, atol=1e-12 * np.trace(Gamma))


def test_a_policy_with_two_rounds_does_not_define_a_graph():
    policy = HeterogeneityAware(sketch=EXACT, graphs=Product([OTHER, OTHER]))
    with pytest.raises(MixingError, match="`graphs` must be a policy with one matrix per mixing"):
        Planner(policy, SimulatedNetwork(GRAPH)).plan(0, random_rows(N, D))


def test_matchings_see_both_objectives_as_well():
    U, X = random_rows(N, 3, 0), random_rows(N, 3, 1)
    both = Planner(HeterogeneityAwareMatchings(sketch=EXACT, objective="both", balance=2.0), SimulatedNetwork(GRAPH))
    both.plan(0, U, rows=X)
    np.testing.assert_allclose(both.gram, mx.gram_matrix(U) + 2 * mx.gram_matrix(X), rtol=0, atol=1e-12)


# --- for exact methods ---
def d2_roots(value):
    return np.roots([1, -2 * value, value])


def extra_roots(value):
    return np.roots([1, -(1 + value), (1 + value) / 2])


@pytest.mark.parametrize(
    ("algorithm", "roots", "is_lazy"),
    [(D2(), d2_roots, True), (EXTRA(), extra_roots, False), (QuasiGlobalMomentum(0.5, inner=D2()), d2_roots, True)],
    ids=["d2", "extra", "quasi-global around d2"],
)
@pytest.mark.parametrize("options", [{"drop_below": 0.1}, {"growth": 1.02}], ids=str)
def test_every_optimized_matrix_is_symmetric_and_stable(algorithm, roots, is_lazy, options, monkeypatch):
    """The algorithm needs such weights, and every new matrix is checked before it is used."""
    checked, check = [], driver.check_weights
    monkeypatch.setattr(driver, "check_weights", lambda *given: (checked.append(given[1]), check(*given)))
    training = make(algorithm, HeterogeneityAware(sketch=EXACT, **options), lr=0.01)
    seen = []
    for _ in range(25):
        (W,) = training.step().plan.params
        dense = W.to_dense()
        assert set(W.graph.edges) <= set(GRAPH.edges)
        assert W.is_symmetric
        values = np.linalg.eigvals(dense)
        others = values[np.abs(values - 1) > 1e-9]
        assert max(np.abs(roots(value)).max() for value in others) < 1
        assert not is_lazy or values.real.min() >= -1e-9
        if not any(W is other for other in seen):
            seen.append(W)
    assert len(seen) > 1
    assert len(checked) == len(seen)  # each of them once
    assert all(a is b for a, b in zip(checked, seen, strict=True))


AWARE = {"sketch": EXACT, "regularization": 0.05}
CHANGE = [HeterogeneityAware(**AWARE), HeterogeneityAware(10**6, **AWARE), HeterogeneityAware(graphs=CHANGING, **AWARE)]


@pytest.mark.parametrize("algorithm", [D2, EXTRA, GradientTracking])
@pytest.mark.parametrize("policy", [*CHANGE, Pairs()], ids=["always", "once", "on changing graphs", "pairs"])
def test_exact_methods_stay_exact_with_weights_that_change(algorithm, policy):
    """With any doubly stochastic W, the method comes to rest at the optimum."""
    graph = complete(N) if policy == CHANGE[2] else GRAPH
    training = stepped(make(algorithm(), policy, graph, lr=0.4 / NOISELESS.smoothness), 250)
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] < 1e-8


# --- what is observed ---
class Whole(HeterogeneityAware):
    """Asks for the updates themselves."""

    def looks(self, t, state):
        look = super().looks(t, state)
        return None if look is None else Look(look.sketches, update=True)


@pytest.mark.parametrize("algorithm", [DSGD, D2, EXTRA, GradientTracking, QuasiGlobalMomentum])
@pytest.mark.parametrize("objective", ["updates", "both"])
def test_sketches_of_before_and_after_are_those_of_the_updates(algorithm, objective):
    """Γ is the same to rounding, and a method that does not need X itself keeps no copy of it."""
    grams, copies = [], []
    for kind in (HeterogeneityAware, Whole):
        training = simulated(kind(2, CountSketch(7, seed=3), objective), algorithm(), GRAPH, lr=0.001)
        training.driver.begin(training.X)
        copies.append("start" in training.driver.state().rows)
        training.step()
        grams.append(gram_of(training.driver.policy_state))
    np.testing.assert_allclose(*grams, rtol=0, atol=1e-10 * np.trace(grams[1]))
    assert copies == [algorithm not in (DSGD, GradientTracking), True]


def test_policies_in_policies_announce_the_sketches_that_they_take():
    first, second = HeterogeneityAware(sketch=CountSketch(5)), HeterogeneityAware(2, sketch=CountSketch(6))

    def look(policy, t=0):
        return policy.looks(t, Planner(policy, SimulatedNetwork(GRAPH)).state)

    assert [sketch.dim for sketch in look(Product([first, OTHER, second])).sketches] == [5, 6]
    assert [sketch.dim for sketch in look(Alternating([first, second]), 1).sketches] == [6]
    assert look(Product([Whole(), first])).update
    assert look(HeterogeneityAware(objective="parameters")) == Look()


# --- rows that are no longer than a sketch ---
@pytest.mark.parametrize(
    "policy", [HeterogeneityAware, HeterogeneityAwareMatchings, AwarePairs, partial(HeterogeneityAware, solver="local")]
)
@pytest.mark.parametrize("sketch", [CountSketch(10), GaussianSketch(100)])
def test_rows_that_are_no_longer_than_a_sketch_are_sent_themselves(policy, sketch):
    """Ten numbers in place of ten or more, and Γ is exact; a sketch of nine is one."""
    task = random_quadratics(6, dim=10, seed=1)
    sketches = sketch, ExactSketch(), replace(sketch, dim=9)
    chosen, exact, shorter = (stepped(simulated(policy(sketch=each), graph=ring(6), task=task), 3) for each in sketches)
    assert torch.equal(chosen.X, exact.X)
    assert chosen.network.traffic == exact.network.traffic
    assert shorter.network.traffic != chosen.network.traffic
