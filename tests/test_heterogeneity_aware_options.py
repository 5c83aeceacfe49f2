"""Heterogeneity-aware weights for algorithms that ask for more, and the policy's options: growth, drop_below, on, kind.

Gram matrices, objectives and stability are computed here by hand, in NumPy; the rows are small and the sketch exact.
"""

from functools import lru_cache

import numpy as np
import pytest
import torch

from mixwise.algorithms import D2, DSGD, EXTRA, GradientTracking, PushSum, QuasiGlobalMomentum
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, random_connected, ring, torus
from mixwise.mixing import gram_matrix, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, Fixed, HeterogeneityAware, Observation, Product, RandomChoice
from mixwise.sketch import CountSketch, ExactSketch
from mixwise.tasks import QuadraticTask, random_quadratics
from mixwise.training import Training
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint

N, D = 8, 5
GRAPH = random_connected(N, keep=0.5, seed=3)
EXACT = ExactSketch()


@lru_cache
def noiseless():
    """Well conditioned, with optima of the nodes that differ."""
    stream = torch.Generator().manual_seed(1)
    A = torch.eye(D) + 0.25 * torch.randn(N, D, D, generator=stream)
    return QuadraticTask(A, torch.randn(N, D, generator=stream), noise=0.0)


def make(algorithm, policy, graph=GRAPH, *, task=None, lr=0.03, **options):
    task = task or noiseless()
    return Training(task, SimulatedNetwork(graph), policy, algorithm, lambda b: torch.optim.SGD(b, lr=lr), **options)


def rows(seed, d=D, n=N):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def look(policy, t, updates, network=None):
    """One plan for given updates."""
    return policy.plan(t, Observation(updates, updates, updates), network or SimulatedNetwork(GRAPH))


def gram(updates):
    centered = (updates - updates.mean(0)).numpy()
    return centered @ centered.T


def objective(W, Gamma):
    """Tr(WᵀΓW)."""
    dense = W.to_dense()
    return float(np.trace(dense.T @ Gamma @ dense))


def assert_doubly_stochastic(W, graph):
    dense = W.to_dense()
    np.testing.assert_allclose(dense.sum(0), 1, rtol=0, atol=1e-9)
    np.testing.assert_allclose(dense.sum(1), 1, rtol=0, atol=1e-9)
    assert dense.min() >= 0
    allowed = np.eye(graph.n, dtype=bool)
    for i, j in graph.edges:
        allowed[i, j] = True
        allowed[j, i] = allowed[j, i] or not graph.directed
    assert not dense[~allowed].any()


# --- for exact methods ---
def d2_roots(value):
    return np.roots([1, -2 * value, value])


def extra_roots(value):
    return np.roots([1, -(1 + value), (1 + value) / 2])


@pytest.mark.parametrize(
    ("algorithm", "roots", "is_lazy"),
    [
        (D2, d2_roots, True),
        (EXTRA, extra_roots, False),
        (lambda: QuasiGlobalMomentum(0.5, inner=D2()), d2_roots, True),
    ],
    ids=["d2", "extra", "quasi-global around d2"],
)
@pytest.mark.parametrize("options", [{}, {"drop_below": 0.1}, {"growth": 1.02}, {"smoothing": 0.5}], ids=str)
def test_every_optimized_matrix_is_symmetric_and_stable(algorithm, roots, is_lazy, options):
    """The algorithm asks the policy, and looks at every new matrix before it is used."""
    training = make(algorithm(), HeterogeneityAware(sketch=EXACT, **options), lr=0.01)
    checked, check = [], training.algorithm.check_weights

    def remember(W):
        checked.append(W)
        check(W)

    training.algorithm.check_weights = remember
    seen = []
    for _ in range(25):
        (W,) = training.step().plan.params
        assert_doubly_stochastic(W, GRAPH)
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


def test_weights_that_were_not_asked_for_may_be_unstable():
    """Without the asking D² would meet optimized matrices that it has to refuse."""
    policy, network = HeterogeneityAware(sketch=EXACT), SimulatedNetwork(GRAPH)
    worst = 0.0
    for seed in range(10):
        values = np.linalg.eigvals(look(policy, seed, rows(seed), network).params[0].to_dense())
        worst = max([worst, *(np.abs(d2_roots(v)).max() for v in values if abs(v - 1) > 1e-9)])
    assert worst > 1


@pytest.mark.parametrize("algorithm", [D2, EXTRA, GradientTracking])
@pytest.mark.parametrize("period", [1, 10**6])
def test_exact_methods_stay_exact_with_optimized_weights(algorithm, period):
    """Whatever W is, doubly stochastic, the optimum is where nothing moves any more."""
    policy = HeterogeneityAware(period, sketch=EXACT, regularization=0.05)
    training = make(algorithm(), policy, lr=0.4 / noiseless().smoothness)
    for _ in range(250):
        training.step()
    assert noiseless().evaluate(training.X)["distance_to_optimum"] < 1e-8


def test_gradient_tracking_lets_the_policy_see_the_tracked_gradients():
    """U = η Y: what is mixed."""
    policy = HeterogeneityAware(sketch=EXACT)
    training = make(GradientTracking(), policy)
    for _ in range(10):
        Y = training.step().gradients
        np.testing.assert_allclose(training.policy.gram, gram(0.03 * Y), rtol=1e-8, atol=1e-10)


def test_d2_lets_the_policy_see_what_it_mixes():
    """X − φ, φ = ψ + X − ψ_prev, not the optimizer's step."""
    policy = HeterogeneityAware(sketch=EXACT)
    training, psi_prev = make(D2(), policy), None
    for _ in range(10):
        X = training.X.clone()
        G = training.step().gradients
        psi = X - 0.03 * G
        phi = psi if psi_prev is None else psi + X - psi_prev
        np.testing.assert_allclose(training.policy.gram, gram(X - phi), rtol=1e-8, atol=1e-10)
        psi_prev = psi


# --- for push-sum on directed graphs ---
def one_way():
    arcs = [(i, (i + 1) % N) for i in range(N)] + [(0, 4), (3, 1), (6, 2), (5, 0), (2, 7)]
    return Graph(N, arcs, directed=True)


def test_push_sum_with_optimized_sender_weights_keeps_numerators_and_weights():
    policy = HeterogeneityAware(2, sketch=EXACT, kind="sender", regularization=0.2)
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
        mass = training.algorithm.state["mass"]
        torch.testing.assert_close((mass * training.X).sum(0), sums, rtol=0, atol=1e-8)  # sums of W are 1 within 1e-9
        assert float(mass.sum()) == pytest.approx(N, abs=1e-7)
    assert apart > 0.1


def test_push_sum_with_optimized_doubly_stochastic_weights_is_dsgd():
    """On a directed graph, too, there are such weights."""
    found = [make(algorithm(), HeterogeneityAware(sketch=EXACT), one_way()) for algorithm in (PushSum, DSGD)]
    for _ in range(30):
        for training in found:
            training.step()
    torch.testing.assert_close(found[0].X, found[1].X, rtol=0, atol=1e-7)


# --- growth ---
def test_with_growth_the_same_updates_are_solved_for_once():
    policy, network, U = HeterogeneityAware(sketch=EXACT, growth=1.2), SimulatedNetwork(GRAPH), rows(0)
    first = look(policy, 0, U, network)
    assert first.solve is not None
    for t in range(1, 6):
        plan = look(policy, t, U, network)
        assert plan.solve is None
        assert plan.params[0] is first.params[0]
    assert network.traffic.sketches == 6 * (N - 1) * N * D * 8  # it looked at every mixing


def test_with_growth_other_updates_are_solved_for():
    policy, network = HeterogeneityAware(sketch=EXACT, growth=1.2), SimulatedNetwork(GRAPH)
    look(policy, 0, rows(0), network)
    plan = look(policy, 1, rows(7), network)
    assert plan.solve is not None
    expected = minimize_gme(gram(rows(7)), GRAPH).W
    np.testing.assert_allclose(plan.params[0].to_dense(), expected.to_dense(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("growth", [1.0, 1.1, 1.5, 3.0, 100.0])
def test_the_rule_of_growth(growth):
    """A solve if and only if Tr(WᵀΓW)/Tr Γ of the weights in use exceeds `growth` times what it was at their solve."""
    policy, network = HeterogeneityAware(sketch=EXACT, growth=growth), SimulatedNetwork(GRAPH)
    W, made, verdicts = None, 0.0, []
    for t in range(60):
        U = rows(0) + 0.05 * t * rows(1)  # data that change slowly
        Gamma = gram(U)
        expected = W is None or objective(W, Gamma) / np.trace(Gamma) > growth * max(made, 1e-3)
        plan = look(policy, t, U, network)
        assert (plan.solve is not None) == expected
        (W,) = plan.params
        if expected:
            made = objective(W, Gamma) / np.trace(Gamma)
        verdicts.append(expected)
    assert verdicts[0]
    assert sum(verdicts) < 60
    assert (sum(verdicts) > 1) == (growth < 100)


def test_growth_saves_solves_in_a_run():
    solves = {}
    for growth in (None, 1.05, 1.5):
        training = make(DSGD(), HeterogeneityAware(sketch=EXACT, growth=growth))
        solves[growth] = sum(training.step().plan.solve is not None for _ in range(40))
    assert solves[None] == 40
    assert solves[1.5] <= solves[1.05] < 20


# --- drop_below ---
@pytest.mark.parametrize(
    ("graph", "symmetric"),
    [(complete(N), False), (complete(N), True), (torus(2, 4), False), (torus(2, 4), True), (one_way(), False)],
    ids=["complete", "complete, symmetric", "torus", "torus, symmetric", "directed"],
)
@pytest.mark.parametrize("threshold", [0.05, 0.15, 0.3])
def test_dropped_arcs_save_messages_and_the_rest_is_optimal(graph, symmetric, threshold):
    network, U = SimulatedNetwork(graph), rows(3)
    full = look(HeterogeneityAware(sketch=EXACT, symmetric=symmetric), 0, U, network).params[0]
    thin = look(HeterogeneityAware(sketch=EXACT, symmetric=symmetric, drop_below=threshold), 0, U, network).params[0]
    assert_doubly_stochastic(thin, graph)
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


def test_dropped_arcs_save_bytes_in_a_run():
    sent = {}
    for threshold in (0.0, 0.2):
        training = make(DSGD(), HeterogeneityAware(5, sketch=EXACT, drop_below=threshold), complete(N))
        for _ in range(20):
            training.step()
        sent[threshold] = training.network.traffic.parameters
    assert sent[0.2] < 0.5 * sent[0.0]


# --- on: graphs that change ---
def graph_at(policy, t):
    return policy.plan(t, None, None).params[0].graph


CHANGING = {
    "alternating": lambda: Alternating(Fixed(metropolis_hastings(ring(N))), Fixed(uniform(complete(N)))),
    "random": lambda: RandomChoice([metropolis_hastings(g) for g in (ring(N), chain(N), torus(2, 4))], seed=2),
}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("period", [1, 3])
def test_the_weights_are_the_best_on_the_graph_of_the_moment(name, period):
    """For the Γ of the last look, also where the graph changes between two looks."""
    policy = HeterogeneityAware(period, sketch=EXACT, graphs=CHANGING[name]())
    network, seen, before = SimulatedNetwork(complete(N)), set(), None
    for t in range(20):
        U = rows(t)
        if t % period == 0:
            Gamma = gram(U)
        plan, graph = look(policy, t, U, network), graph_at(policy.graphs, t)
        (W,) = plan.params
        assert_doubly_stochastic(W, graph)
        assert objective(W, Gamma) <= objective(minimize_gme(Gamma, graph).W, Gamma) + 1e-9 * np.trace(Gamma)
        assert (plan.solve is not None) == (t % period == 0 or graph != before)
        seen.add(graph)
        before = graph
    assert len(seen) > 1


def test_dropped_arcs_on_graphs_that_change():
    policy = HeterogeneityAware(3, sketch=EXACT, graphs=CHANGING["random"](), drop_below=0.2)
    network, graphs = SimulatedNetwork(complete(N)), policy.graphs
    solved = []
    for t in range(12):
        plan = look(policy, t, rows(t), network)
        assert_doubly_stochastic(plan.params[0], graph_at(graphs, t))
        solved.append(plan.solve is not None)
    changed = [t == 0 or graph_at(graphs, t) != graph_at(graphs, t - 1) for t in range(12)]
    assert solved == [t % 3 == 0 or changed[t] for t in range(12)]  # the thinner graph of W is not another graph


def test_exact_methods_on_graphs_that_change():
    """Asked for stable weights, the policy makes them on every graph."""
    policy = HeterogeneityAware(1, sketch=EXACT, graphs=CHANGING["alternating"](), regularization=0.05)
    training = make(D2(), policy, complete(N), lr=0.4 / noiseless().smoothness)
    for _ in range(250):
        training.step()
    assert noiseless().evaluate(training.X)["distance_to_optimum"] < 1e-8


def test_a_policy_with_two_rounds_tells_no_graph():
    W = metropolis_hastings(GRAPH)
    policy = HeterogeneityAware(sketch=EXACT, graphs=Product(Fixed(W), Fixed(W)))
    with pytest.raises(MixingError, match="`graphs` must be a policy with one matrix per mixing"):
        look(policy, 0, rows(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth": 0.9}, r"growth = 0\.9; the factor .* at least 1"),
        ({"growth": float("nan")}, "growth = nan"),
        ({"drop_below": 0.5}, r"drop_below = 0\.5; .*\[0, 0\.5\)"),
        ({"drop_below": -0.1}, r"drop_below = -0\.1"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(MixingError, match=message):
        HeterogeneityAware(**options)


# --- a run may stop and go on with the same bits ---
def with_noise():
    return random_quadratics(N, dim=D, noise=0.2)


def aware(**options):
    settings = {"period": 2, "sketch": CountSketch(4, seed=1), "regularization": 0.02, **options}
    return HeterogeneityAware(settings.pop("period"), **settings)


OPTIONS = {
    "growth": (DSGD, lambda: aware(growth=1.3, period=1), complete(N)),
    "growth and smoothing": (DSGD, lambda: aware(growth=1.1, period=1, smoothing=0.5), complete(N)),
    "drop_below": (DSGD, lambda: aware(drop_below=0.1), complete(N)),
    "on alternating": (DSGD, lambda: aware(graphs=CHANGING["alternating"](), period=3), complete(N)),
    "on random, growth, drop_below": (
        DSGD,
        lambda: aware(graphs=CHANGING["random"](), growth=1.2, drop_below=0.15, period=3),
        complete(N),
    ),
    "on another": (DSGD, lambda: aware(graphs=aware(drop_below=0.2), alternate_with=aware(period=3)), complete(N)),
    "symmetric and lazy": (D2, lambda: aware(growth=1.2, period=1), GRAPH),
    "symmetric, drop_below": (EXTRA, lambda: aware(drop_below=0.1), GRAPH),
    "tracking": (GradientTracking, lambda: aware(period=3, objective="parameters"), GRAPH),
    "sender": (PushSum, lambda: aware(kind="sender", regularization=0.3), one_way()),
    "sender, drop_below": (PushSum, lambda: aware(kind="sender", regularization=0.3, drop_below=0.05), one_way()),
}


@pytest.mark.parametrize("before", [1, 4, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_restored_policy_goes_on_with_the_same_bits(name, before, tmp_path):
    algorithm, policy, graph = OPTIONS[name]
    training, restored = (make(algorithm(), policy(), graph, task=with_noise(), lr=0.003) for _ in range(2))
    for _ in range(before):
        training.step()
    save_checkpoint(training, tmp_path / "c")
    load_checkpoint(restored, tmp_path / "c")
    assert restored.policy.W == training.policy.W
    for _ in range(7):
        expected, found = training.step(), restored.step()
        assert found.plan.params == expected.plan.params
        assert (found.plan.solve is None) == (expected.plan.solve is None)
        assert torch.equal(restored.X, training.X)
    (tensors, values), (others, other_values) = training.state(), restored.state()
    assert tensors.keys() == others.keys()
    assert all(torch.equal(others[key], value) for key, value in tensors.items())
    assert other_values == values


def test_both_adds_the_gram_matrices_of_updates_and_parameters():
    U, X = torch.randn(N, 3, dtype=torch.float64), torch.randn(N, 3, dtype=torch.float64)
    policy, network = HeterogeneityAware(sketch=EXACT, objective="both", balance=2.0), SimulatedNetwork(complete(N))
    policy.plan(0, Observation(U, U, X), network)
    np.testing.assert_allclose(policy.gram, gram_matrix(U) + 2 * gram_matrix(X), rtol=0, atol=1e-12)
    assert network.traffic.sketches == 2 * N * (N - 1) * 3 * 8
    policy = HeterogeneityAware(sketch=EXACT, objective="both")
    policy.plan(
        0, Observation(torch.zeros_like(U), U, X), network
    )  # U = 0: gradients have another unit, so they stand alone
    np.testing.assert_allclose(policy.gram, gram_matrix(U), rtol=0, atol=1e-12)


# --- sketches of updates that are never there as a whole ---
class Whole(HeterogeneityAware):
    """Asks for the updates themselves."""

    def sketches(self, t):
        return None


@pytest.mark.parametrize("algorithm", [DSGD, D2, EXTRA, GradientTracking, QuasiGlobalMomentum])
@pytest.mark.parametrize("objective", ["updates", "both"])
def test_sketches_of_before_and_after_are_those_of_the_updates(algorithm, objective):
    """Γ is the same to rounding, and D-SGD keeps no copy of the rows for it."""
    grams = []
    for kind in (HeterogeneityAware, Whole):
        policy = kind(2, sketch=CountSketch(7, seed=3), objective=objective)
        training = Training(
            random_quadratics(N, seed=1), SimulatedNetwork(GRAPH), policy, algorithm(),
            lambda p: torch.optim.SGD(p, lr=0.001),
        )  # fmt: skip
        training.step()
        training.driver.remember(training.X)
        if kind is HeterogeneityAware and algorithm is DSGD:
            assert training.driver.start is None
        grams.append(training.policy.gram)
    np.testing.assert_allclose(*grams, rtol=0, atol=1e-10 * np.trace(grams[1]))


def test_policies_in_policies_say_which_sketches_they_take():
    first, second = HeterogeneityAware(sketch=CountSketch(5)), HeterogeneityAware(2, sketch=CountSketch(6))
    both = Product(first, Fixed(metropolis_hastings(GRAPH)), second)
    assert both.sketches(0) == both.policies[0].sketches(0) + both.policies[2].sketches(0)
    assert [sketch.dim for sketch in both.sketches(0)] == [5, 6]
    assert [sketch.dim for sketch in Alternating(first, second).sketches(1)] == [6]
    assert Product(Whole(), first).sketches(0) is None
    assert HeterogeneityAware(objective="parameters").sketches(0) == ()
