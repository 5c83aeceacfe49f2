"""Heterogeneity-aware weights for algorithms that need more of them, and the options growth, drop_below and graphs.

Gram matrices, objectives and stability are computed here by hand, in NumPy; the rows are small and the sketch exact.
"""

import numpy as np
import pytest
import torch

from builders import gme_objective, random_rows, simulated, well_conditioned
from mixwise.algorithms import D2, DSGD, EXTRA, GradientTracking, PushSum, QuasiGlobalMomentum
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, random_connected, ring, torus
from mixwise.mixing import gram_matrix, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, HeterogeneityAware, HeterogeneityAwareMatchings, Look, Product, RandomChoice
from mixwise.sketch import CountSketch, ExactSketch
from mixwise.tasks import random_quadratics
from mixwise.training import driver
from planning import Planner, assert_runs_resume, gram_of, observed

N, D = 8, 5
GRAPH = random_connected(N, keep=0.5, seed=3)
EXACT = ExactSketch()
NOISELESS = well_conditioned(N, D, seed=1)


def make(algorithm, policy, graph=GRAPH, **options):
    return simulated(policy, algorithm, graph, **{"task": NOISELESS, "lr": 0.03, **options})


def planner(graph=GRAPH, period=1, **options):
    return Planner(HeterogeneityAware(period, sketch=EXACT, **options), SimulatedNetwork(graph))


def rows(seed):
    return random_rows(N, D, seed)


def gram(updates):
    centered = (updates - updates.mean(0)).numpy()
    return centered @ centered.T


def objective(W, Gamma):
    return gme_objective(Gamma, W.to_dense())


def assert_on(W, graph):
    """Doubly stochastic, which every such MixingMatrix is, and along edges of the graph."""
    assert W.kind == "doubly"
    assert set(W.graph.edges) <= set(graph.edges)


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
@pytest.mark.parametrize("options", [{}, {"drop_below": 0.1}, {"growth": 1.02}, {"smoothing": 0.5}], ids=str)
def test_every_optimized_matrix_is_symmetric_and_stable(algorithm, roots, is_lazy, options, monkeypatch):
    """The algorithm needs such weights, and every new matrix is checked before it is used."""
    checked, check = [], driver.check_weights
    monkeypatch.setattr(driver, "check_weights", lambda *given: (checked.append(given[1]), check(*given)))
    training = make(algorithm, HeterogeneityAware(sketch=EXACT, **options), lr=0.01)
    seen = []
    for _ in range(25):
        (W,) = training.step().plan.params
        assert_on(W, GRAPH)
        dense = W.to_dense()
        np.testing.assert_allclose(dense, dense.T, rtol=0, atol=1e-9)
        values = np.linalg.eigvals(dense)
        others = values[np.abs(values - 1) > 1e-9]
        assert max(np.abs(roots(value)).max() for value in others) < 1
        assert not is_lazy or values.real.min() >= -1e-9
        if not any(W is other for other in seen):
            seen.append(W)
    assert len(seen) > 1
    assert len(checked) == len(seen)  # each of them once
    assert all(a is b for a, b in zip(checked, seen, strict=True))


ON_GRAPHS = {"graphs": Alternating([metropolis_hastings(ring(N)), uniform(complete(N))])}


@pytest.mark.parametrize("algorithm", [D2, EXTRA, GradientTracking])
@pytest.mark.parametrize("options", [{}, {"period": 10**6}, ON_GRAPHS], ids=["always", "once", "on changing graphs"])
def test_exact_methods_stay_exact_with_optimized_weights(algorithm, options):
    """Whatever W is, doubly stochastic, the optimum is where nothing moves any more."""
    policy = HeterogeneityAware(sketch=EXACT, regularization=0.05, **options)
    training = make(algorithm(), policy, complete(N) if options is ON_GRAPHS else GRAPH, lr=0.4 / NOISELESS.smoothness)
    for _ in range(250):
        training.step()
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] < 1e-8


@pytest.mark.parametrize("objective", ["updates", "parameters"])
@pytest.mark.parametrize("algorithm", [D2(), QuasiGlobalMomentum(0.0, inner=D2())])
def test_d2_lets_the_policy_see_what_it_mixes(algorithm, objective):
    """X − φ, φ = ψ + X − ψ_prev, not the optimizer's step; or φ itself."""
    training, psi_prev = make(algorithm, HeterogeneityAware(sketch=EXACT, objective=objective)), None
    for _ in range(10):
        X = training.X.clone()
        psi = X - 0.03 * training.step().gradients
        phi = psi if psi_prev is None else psi + X - psi_prev
        seen = X - phi if objective == "updates" else phi
        np.testing.assert_allclose(gram_of(training.driver.policy_state), gram(seen), rtol=1e-8, atol=1e-10)
        psi_prev = psi


# --- for push-sum on directed graphs ---
def one_way():
    arcs = [(i, (i + 1) % N) for i in range(N)] + [(0, 4), (3, 1), (6, 2), (5, 0), (2, 7)]
    return Graph(N, arcs, directed=True)


def test_push_sum_with_optimized_sender_weights_keeps_numerators_and_weights():
    policy = HeterogeneityAware(2, sketch=EXACT, stochastic="sender", regularization=0.2)
    training = make(PushSum(), policy, one_way(), lr=0.005)
    sums, apart = training.X.sum(0).clone(), 0.0
    for _ in range(30):
        step = training.step()
        (W,) = step.plan.params
        dense = W.to_dense()
        assert W.kind == "sender"
        np.testing.assert_allclose(dense.sum(1), 1, rtol=0, atol=1e-9)
        apart = max(apart, np.abs(dense.sum(0) - 1).max())
        sums = sums - 0.005 * step.gradients.sum(0)
        mass = training.driver.algorithm_state.rows["mass"]
        torch.testing.assert_close((mass * training.X).sum(0), sums, rtol=0, atol=1e-8)  # sums of W are 1 within 1e-9
        assert float(mass.sum()) == pytest.approx(N, abs=1e-7)
    assert apart > 0.1


# --- growth ---
@pytest.mark.parametrize("growth", [1.0, 1.1, 1.5, 3.0, 100.0])
@pytest.mark.parametrize("speed", [0.0, 0.05])
def test_weights_are_solved_for_when_their_error_has_grown(growth, speed):
    """A solve if and only if Tr(WᵀΓW)/Tr Γ of the weights in use exceeds `growth` times what it was at their solve."""
    policy, W, made, verdicts = planner(growth=growth), None, 0.0, []
    for t in range(60):
        U = rows(0) + speed * t * rows(1)  # data that change slowly, or not at all
        Gamma = gram(U)
        expected = W is None or objective(W, Gamma) / np.trace(Gamma) > growth * max(made, 1e-3)
        plan = policy.plan(t, U)
        assert (plan.solve is not None) == expected
        if expected:
            (W,) = plan.params
            np.testing.assert_allclose(W.to_dense(), minimize_gme(Gamma, GRAPH).W.to_dense(), rtol=0, atol=1e-7)
            made = objective(W, Gamma) / np.trace(Gamma)
        assert plan.params[0] is W
        verdicts.append(expected)
    assert verdicts[0]
    assert sum(verdicts) < 60
    assert (sum(verdicts) > 1) == (growth < 100 and speed > 0)
    assert policy.network.traffic.sketches == 60 * (N - 1) * N * D * 8  # it looked at every mixing


# --- drop_below ---
@pytest.mark.parametrize(
    ("graph", "symmetric"),
    [(complete(N), False), (complete(N), True), (torus(2, 4), False), (torus(2, 4), True), (one_way(), False)],
    ids=["complete", "complete, symmetric", "torus", "torus, symmetric", "directed"],
)
@pytest.mark.parametrize("threshold", [0.05, 0.15, 0.3])
def test_dropped_arcs_save_messages_and_the_rest_is_optimal(graph, symmetric, threshold):
    U = rows(3)
    full, thin = (planner(graph, symmetric=symmetric, drop_below=x).plan(0, U).params[0] for x in (0.0, threshold))
    assert_on(thin, graph)
    Gamma = gram(U)
    assert thin.messages <= full.messages
    best, found = objective(full, Gamma), objective(thin, Gamma)
    # the tie-break of the solver, 1e-8 ‖W‖²_F of the scaled Γ, may cost that much of the objective
    assert found >= best - 1e-7 * np.trace(Gamma)
    dense = full.to_dense()
    large = np.maximum(dense, dense.T) if not graph.directed else dense
    np.fill_diagonal(large, 1)
    assert not thin.to_dense()[large < threshold - 1e-9].any()
    kept = [(i, j) for i, j in thin.graph.edges]
    assert all(large[i, j] >= threshold - 1e-9 for i, j in kept)
    again = minimize_gme(Gamma, Graph(N, kept, directed=graph.directed), symmetric=symmetric).W
    np.testing.assert_allclose(thin.to_dense(), again.to_dense(), rtol=0, atol=1e-7)
    if threshold == 0.3:
        assert thin.messages < full.messages


# --- graphs that change ---
CHANGING = {
    "alternating": ON_GRAPHS["graphs"],
    "random": RandomChoice([metropolis_hastings(g) for g in (ring(N), chain(N), torus(2, 4))]),
}


def graph_at(policy, t):
    """The graph of the moment, from the nested policy."""
    return policy.policy.graphs.plan(observed(t), policy.state.parts["graphs"], policy.network).params[0].graph


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize(("period", "drop_below"), [(1, 0.0), (3, 0.0), (3, 0.2)])
def test_the_weights_are_the_best_on_the_graph_of_the_moment(name, period, drop_below):
    """For the Γ of the last look, also where the graph changes between two looks."""
    policy = planner(complete(N), period, graphs=CHANGING[name], drop_below=drop_below)
    seen, before = set(), None
    for t in range(20):
        U = rows(t)
        if t % period == 0:
            Gamma = gram(U)
        plan, graph = policy.plan(t, U), graph_at(policy, t)
        (W,) = plan.params
        assert_on(W, graph)
        best = objective(minimize_gme(Gamma, graph).W, Gamma)
        assert drop_below or objective(W, Gamma) <= best + 1e-9 * np.trace(Gamma)
        # the thinner graph of W, without the dropped arcs, is not another graph
        assert (plan.solve is not None) == (t % period == 0 or graph != before)
        seen.add(graph)
        before = graph
    assert len(seen) > 1


def test_a_policy_with_two_rounds_does_not_define_a_graph():
    W = metropolis_hastings(GRAPH)
    with pytest.raises(MixingError, match="`graphs` must be a policy with one matrix per mixing"):
        planner(graphs=Product([W, W])).plan(0, rows(0))


# --- interrupted runs ---
def aware(period=2, **options):
    return HeterogeneityAware(period, **{"sketch": CountSketch(4, seed=1), "regularization": 0.02, **options})


RANDOM, SENDER = CHANGING["random"], {"stochastic": "sender", "regularization": 0.3}
OPTIONS = {
    "growth": (DSGD(), aware(1, growth=1.3), complete(N)),
    "growth and smoothing": (DSGD(), aware(1, growth=1.1, smoothing=0.5), complete(N)),
    "drop_below": (DSGD(), aware(drop_below=0.1), complete(N)),
    "alternating graphs": (DSGD(), aware(3, graphs=CHANGING["alternating"]), complete(N)),
    "random graphs, growth, drop_below": (DSGD(), aware(3, graphs=RANDOM, growth=1.2, drop_below=0.15), complete(N)),
    "nested": (DSGD(), aware(graphs=aware(drop_below=0.2), alternate_with=aware(3)), complete(N)),
    "symmetric and lazy": (D2(), aware(1, growth=1.2), GRAPH),
    "symmetric, drop_below": (EXTRA(), aware(drop_below=0.1), GRAPH),
    "tracking": (GradientTracking(), aware(3, objective="parameters"), GRAPH),
    "sender": (PushSum(), aware(**SENDER), one_way()),
    "sender, drop_below": (PushSum(), aware(drop_below=0.05, **SENDER), one_way()),
}


@pytest.mark.parametrize("before", [1, 4, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_restored_run_continues_bit_for_bit(name, before):
    algorithm, policy, graph = OPTIONS[name]
    task = random_quadratics(N, dim=D, noise=0.2)
    assert_runs_resume(lambda: make(algorithm, policy, graph, task=task, lr=0.003), before)


# --- what is observed ---
@pytest.mark.parametrize("kind", [HeterogeneityAware, HeterogeneityAwareMatchings])
def test_both_adds_the_gram_matrices_of_updates_and_parameters(kind):
    U, X = random_rows(N, 3, 0), random_rows(N, 3, 1)
    both = Planner(kind(sketch=EXACT, objective="both", balance=2.0), SimulatedNetwork(complete(N)))
    both.plan(0, U, rows=X)
    np.testing.assert_allclose(both.gram, gram_matrix(U) + 2 * gram_matrix(X), rtol=0, atol=1e-12)
    assert both.network.traffic.sketches == 2 * N * (N - 1) * 3 * 8
    both = planner(complete(N), objective="both")
    both.plan(0, torch.zeros_like(U), U, X)  # U = 0: gradients have another unit, so they stand alone
    np.testing.assert_allclose(both.gram, gram_matrix(U), rtol=0, atol=1e-12)


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

    assert [sketch.dim for sketch in look(Product([first, metropolis_hastings(GRAPH), second])).sketches] == [5, 6]
    assert [sketch.dim for sketch in look(Alternating([first, second]), 1).sketches] == [6]
    assert look(Product([Whole(), first])).update
    assert look(HeterogeneityAware(objective="parameters")) == Look()
