"""Policies: which weights at which mixing, when a sketch is taken, and what happens when a solve fails."""

import re
from importlib import resources

import cvxpy
import numpy as np
import pytest
import torch

import mixwise.mixing as mx
import mixwise.policies as pol
from builders import asymmetric, random_rows, refused
from mixwise.errors import MixingError, SolverError
from mixwise.graphs import complete, ring
from mixwise.needs import Needs
from mixwise.network import SimulatedNetwork
from mixwise.parts import words
from mixwise.plan import Plan
from mixwise.policies.choice import policy_for
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch
from planning import Planner

N, D = 6, 9
GRAPH = ring(N)
OTHER = mx.metropolis_hastings(GRAPH)


def rows(t: int) -> torch.Tensor:
    """U of mixing t."""
    return random_rows(N, D, seed=t)


def run(policy, steps: int) -> list[tuple[Plan, bool]]:
    """The plans of mixings 0 … steps − 1, and whether anything was gathered for each."""
    planner, outcome = Planner(policy, SimulatedNetwork(GRAPH)), []
    for t in range(steps):
        before = planner.network.traffic.sketches
        plan = planner.plan(t, rows(t))
        outcome.append((plan, planner.network.traffic.sketches > before))
    return outcome


def optimal(t: int, **options) -> mx.MixingMatrix:
    return mx.minimize_gme(mx.gram_matrix(rows(t)), GRAPH, **options).W


def aware(period: int = 1, **options) -> pol.HeterogeneityAware:
    return pol.HeterogeneityAware(period, **{"sketch": ExactSketch(), **options})


# --- heterogeneity-aware weights; all options: test_heterogeneity_aware.py ---
def test_it_may_alternate_with_a_policy():
    turns = run(aware(alternate_with=pol.Alternating([mx.lazy(OTHER), OTHER])), 4)
    assert [plan.params for plan, _ in turns] == [(optimal(0),), (OTHER,), (optimal(2),), (OTHER,)]


LOOKS = [(pol.Fixed(OTHER), 0, False), (pol.RandomChoice([OTHER]), 0, False), (pol.Product([OTHER, aware()]), 1, True)]
LOOKS += [(pol.Alternating([OTHER, aware()]), t, t == 1) for t in (0, 1)]
LOOKS += [(pol.Decoupled(params=OTHER, updates=aware()), 0, True)]
LOOKS += [(aware(5, **{name: aware()}), 3, True) for name in ("graphs", "alternate_with")]
LOOKS += [(aware(5, **{name: OTHER}), 3, False) for name in ("graphs", "alternate_with")]


@pytest.mark.parametrize(("policy", "t", "looks"), LOOKS, ids=lambda value: type(value).__name__)
def test_a_policy_looks_where_a_part_of_it_does(policy, t, looks):
    planner = Planner(policy, SimulatedNetwork(GRAPH))
    if t > 1:
        planner.plan(0, rows(0))
    assert planner.looks(t) == looks


@pytest.mark.parametrize("sketch", [CountSketch(4, seed=1), GaussianSketch(4, seed=1)])
def test_a_new_sketch_is_drawn_at_every_optimization(sketch):
    planner = Planner(pol.HeterogeneityAware(2, sketch=sketch), SimulatedNetwork(GRAPH))
    for t in range(4):
        planner.plan(t, rows(t))
        drawn = t - t % 2
        np.testing.assert_array_equal(planner.gram, mx.gram_matrix(sketch.fresh(drawn)(rows(drawn))))


@pytest.mark.parametrize("t", [0, 3])
def test_ce_gme_is_algorithm_3(t):
    """One Gaussian A for all nodes, Γ of the centered sketches A u, and the W that CVXPY finds over all n² entries."""
    sketch, k = GaussianSketch(4, seed=1), 4
    planner = Planner(pol.HeterogeneityAware(sketch=sketch), SimulatedNetwork(GRAPH))
    for before in range(t + 1):
        plan = planner.plan(before, rows(before))
    A = sketch.fresh(t)(np.eye(D)).T * np.sqrt(k)  # (k, d): what the sketch makes of the unit vectors
    assert 0.3 < A.std() < 3
    S = rows(t).numpy() @ A.T
    centered = S - S.mean(0)
    W = cvxpy.Variable((N, N), nonneg=True)
    missing = np.ones((N, N)) - np.eye(N)
    missing[GRAPH.pattern.rows, GRAPH.pattern.cols] = 0
    constraints = [cvxpy.sum(W, axis=0) == 1, cvxpy.sum(W, axis=1) == 1, cvxpy.multiply(missing, W) == 0]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(W.T @ centered)), constraints)
    best = problem.solve(solver=cvxpy.CLARABEL)
    found = np.square(plan.params_product.T @ centered).sum()
    assert found == pytest.approx(best, rel=1e-5, abs=1e-6 * np.square(centered).sum())


def test_by_default_it_sees_a_count_sketch_of_the_updates_and_the_solver_is_an_option():
    assert pol.HeterogeneityAware() == pol.HeterogeneityAware(1, CountSketch(100), "updates")
    assert run(aware(solver="cvxpy"), 1)[0][0].params == (optimal(0, solver="cvxpy"),) != (optimal(0),)


def test_weights_still_mix_if_everything_is_zero():
    plan = Planner(aware(growth=1.5), SimulatedNetwork(GRAPH)).plan(0, torch.zeros(N, D, dtype=torch.float64))
    np.testing.assert_allclose(plan.params_product, mx.uniform(GRAPH).to_dense(), atol=1e-9)


# --- what the algorithm needs ---
LAZY = Needs(symmetric=True, lazy=True)  # as D²


def test_the_weights_that_it_alternates_with_are_what_the_algorithm_needs():
    plan = Planner(aware(alternate_with=aware()), SimulatedNetwork(GRAPH), LAZY).plan
    for t in range(4):
        assert plan(t, rows(t)).params == (mx.lazy(optimal(t, symmetric=True)),)


@pytest.mark.parametrize("needs", [Needs(symmetric=True), LAZY], ids=["symmetric", "and lazy"])
def test_a_learned_topology_is_made_symmetric_and_lazy_if_needed(needs):
    """(W + Wᵀ)/2, and of that (I + ·)/2."""
    policy = pol.LearnedTopology(2, "updates", observe=2, sketch=ExactSketch())
    plain, needed = (Planner(policy, SimulatedNetwork(ring(7)), given).plan for given in (None, needs))
    for t in range(3):
        dense, found = (plan(t, random_rows(7, D, t)).params[0].to_dense() for plan in (plain, needed))
        assert np.abs(dense - dense.T).max() > 0.1  # of an odd number of nodes, not all can be paired
        expected = (dense + dense.T) / 2
        expected = (np.eye(7) + expected) / 2 if needs.lazy else expected
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_report_shows_a_whole_turn_of_policies_that_take_turns():
    """It knows them by their words."""
    script = (resources.files("mixwise.report") / "template" / "network.js").read_text("utf-8")
    turns = re.search(r"/(\S*in turn\S*)/\.test\(data\.variants", script)[1]
    for policy in (pol.Alternating([OTHER, mx.lazy(OTHER)]), aware(alternate_with=OTHER)):
        assert re.search(turns, words(policy))
    for policy in (pol.Fixed(OTHER), aware(), pol.Product([OTHER, OTHER]), pol.RandomChoice([OTHER, mx.lazy(OTHER)])):
        assert not re.search(turns, words(policy))


# --- a solve that fails ---
@pytest.fixture
def failing(monkeypatch):
    """Γ solved as usual, except while `failing` is not empty."""
    solve, now = mx.GmeProblem.solve, set()

    def sometimes(self, gram, regularization=0.0):
        if now:
            return mx.GmeSolution(None, float("nan"), mx.SolveStatus.NOT_CONVERGED, 250, 0.1, 1.0)
        return solve(self, gram, regularization)

    monkeypatch.setattr(mx.GmeProblem, "solve", sometimes)
    return now


def test_a_failed_solve_keeps_the_previous_weights_and_is_reported(failing):
    planner, used = Planner(aware(2), SimulatedNetwork(GRAPH)), [optimal(0), optimal(0), optimal(0), optimal(6)]
    for t, W in zip((0, 2, 4, 6), used, strict=True):
        failing.update({"now"} if t in (2, 4) else ())
        plan = planner.plan(t, rows(t))
        assert plan.params == (W,)
        assert plan.solves[0].solved != bool(failing)
        assert not failing or plan.solves[0].status == "iteration limit reached"
        failing.clear()


def test_a_failed_first_solve_is_an_error(failing):
    failing.add("now")
    refused(SolverError, "GME-opt was not solved: iteration limit reached after 250 iterations", run, aware(), 1)


# --- another graph, another run ---
def test_the_program_is_laid_out_once_per_graph(monkeypatch):
    made, original = [], mx.GmeProblem.__init__
    laid_out = lambda self, graph, **options: made.append(graph) or original(self, graph, **options)  # noqa: E731
    monkeypatch.setattr(mx.GmeProblem, "__init__", laid_out)
    planner = Planner(aware(), SimulatedNetwork(GRAPH))
    for t in range(5):
        planner.network = SimulatedNetwork(GRAPH if t < 4 else complete(N))
        plan = planner.plan(t, rows(t))
    assert (made, plan.params[0].graph) == ([GRAPH, complete(N)], complete(N))


# --- policies that do not look, and policies made of policies ---
def test_fixed_weights_are_the_same_at_every_mixing_and_gather_nothing():
    assert run(pol.Fixed(OTHER), 3) == [(Plan((OTHER,)), False)] * 3


def test_alternating_hands_on_t_itself():
    """An aware policy at every second place sees t = 1, 3, 5, …: with H = 3, it looks at the first from 0, 3, 6, 9."""
    looked = [t for t, (_, looks) in enumerate(run(pol.Alternating([OTHER, aware(3)]), 10)) if looks]
    assert looked == [1, 3, 7, 9]


def test_a_product_of_products_is_a_product_and_reports_its_solve():
    ((plan, _),) = run(pol.Product([pol.Product([asymmetric(N), aware()]), OTHER]), 1)
    assert plan.params == (asymmetric(N), optimal(0), OTHER)
    assert plan.solves


def test_decoupled_has_two_channels():
    alone = Plan((OTHER, asymmetric(N)))  # without a channel of their own, updates go the way of the parameters
    np.testing.assert_array_equal(alone.updates_product, alone.params_product)
    ((plan, _),) = run(pol.Decoupled(params=OTHER, updates=pol.Product([aware(), asymmetric(N)])), 1)
    assert (plan.params, plan.updates) == ((OTHER,), (optimal(0), asymmetric(N)))
    assert plan.solves
    np.testing.assert_array_equal(plan.params_product, OTHER.to_dense())
    np.testing.assert_array_equal(plan.updates_product, optimal(0).to_dense() @ asymmetric(N).to_dense())


def test_a_product_with_two_channels_is_rejected():
    rule = "a second channel is not defined; put it inside Decoupled"
    refused(MixingError, rule, run, pol.Product([pol.Decoupled(OTHER, OTHER), OTHER]), 1)


def test_a_policy_may_be_given_as_a_matrix_a_name_or_a_function_of_the_graph():
    for choice in (pol.Fixed(OTHER), OTHER, lambda graph: mx.metropolis_hastings(graph)):
        assert policy_for(choice, GRAPH, Needs()) == pol.Fixed(OTHER)
    assert policy_for("auto", GRAPH, Needs()) == pol.Auto()
    assert policy_for("matchings", GRAPH, Needs(plan="nothing")) == pol.Matchings()
    assert policy_for("auto", GRAPH, Needs(plan="nothing")) == pol.NoMixing()
    refused(MixingError, "policy is 3; pass a policy such as .*, the name of a policy", policy_for, 3, GRAPH, Needs())


@pytest.mark.parametrize("combined", [pol.Alternating, pol.Product, pol.RandomChoice])
def test_combinations_of_nothing_are_rejected(combined):
    refused(MixingError, f"{combined.__name__} needs at least one policy", combined, [])
