"""Policies: which weights at which mixing, when a sketch is taken, and what happens when a solve fails."""

import re
from importlib import resources

import numpy as np
import pytest
import torch

import mixwise.mixing as mx
import mixwise.policies as pol
from builders import asymmetric, random_rows, refused
from mixwise.errors import MixingError, SolverError
from mixwise.graphs import Graph, complete, directed_ring, ring, torus
from mixwise.needs import Needs
from mixwise.network import SimulatedNetwork
from mixwise.parts import words
from mixwise.plan import Plan
from mixwise.policies.choice import policy_for
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch
from planning import Planner, reloaded

N, D = 6, 9
GRAPH = ring(N)
OTHER = mx.metropolis_hastings(GRAPH)


class CountingNetwork(SimulatedNetwork):
    """Remembers what was gathered."""

    def __init__(self, graph: Graph = GRAPH) -> None:
        super().__init__(graph)
        self.gathered: list[torch.Tensor] = []

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        self.gathered.append(rows.clone())
        return super().gather(rows)


def rows(t: int, what: str) -> torch.Tensor:
    return random_rows(N, D, seed=1000 * t + "UGX".index(what))


def seen(t: int, still: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U, G and X′, other ones at every mixing; `still`: the optimizer has not moved."""
    U = rows(t, "U")
    return torch.zeros_like(U) if still else U, rows(t, "G"), rows(t, "X")


def run(policy, steps: int, network: CountingNetwork | None = None, still=()) -> list[tuple[Plan, int]]:
    """The plans of mixings 0 … steps − 1, and how often each gathered."""
    planner, outcome = Planner(policy, network or CountingNetwork()), []
    for t in range(steps):
        before = len(planner.network.gathered)
        plan = planner.plan(t, *seen(t, t in still))
        outcome.append((plan, len(planner.network.gathered) - before))
    return outcome


def weights(outcome) -> list[mx.MixingMatrix]:
    """The matrices of plans with one round each."""
    assert all(len(plan.params) == 1 and plan.updates is None for plan, _ in outcome)
    return [plan.params[0] for plan, _ in outcome]


def looked_at(outcome) -> list[int]:
    return [t for t, (_, gathers) in enumerate(outcome) if gathers]


def optimal(t: int, what: str = "U", **options) -> mx.MixingMatrix:
    return mx.minimize_gme(mx.gram_matrix(rows(t, what)), GRAPH, **options).W


def aware(period: int = 1, **options) -> pol.HeterogeneityAware:
    return pol.HeterogeneityAware(period, **{"sketch": ExactSketch(), **options})


# --- when it optimizes, and what it uses ---
@pytest.mark.parametrize("period", range(1, 8))
@pytest.mark.parametrize("other", [None, OTHER], ids=["alone", "alternating"])
def test_it_looks_once_per_period_if_the_weights_will_be_used_and_keeps_them_in_between(period, other):
    """Alternating, odd mixings use the other weights: a look at the start of a period serves its next even mixing."""
    planner, expected, looked = Planner(aware(period, alternate_with=other), CountingNetwork()), None, []
    for t in range(8 * period):
        start, rest = t - t % period, range(t, t - t % period + period)
        due = t == start and (other is None or any(later % 2 == 0 for later in rest))
        assert planner.looks(t) == due
        before, (U, G, X) = len(planner.network.gathered), seen(t)
        plan = planner.plan(t, U if due else None, G, X)  # at other mixings there are no updates to read
        expected = optimal(t) if due else expected
        assert plan.params == (OTHER if other and t % 2 else expected,)
        assert len(planner.network.gathered) - before == (plan.solve is not None) == due
        looked += [t] if due else []
    assert looked == [t for t in range(0, 8 * period, period) if other is None or period > 1 or t % 2 == 0]


def test_it_may_alternate_with_a_policy():
    turns = run(aware(alternate_with=pol.Alternating([mx.lazy(OTHER), OTHER])), 4)
    assert weights(turns) == [optimal(0), OTHER, optimal(2), OTHER]


LOOKS = [(pol.Fixed(OTHER), 0, False), (pol.RandomChoice([OTHER]), 0, False), (pol.Product([OTHER, aware()]), 1, True)]
LOOKS += [(pol.Alternating([OTHER, aware()]), t, t == 1) for t in (0, 1)]
LOOKS += [(pol.Decoupled(params=OTHER, updates=aware()), 0, True)]
LOOKS += [(aware(5, **{name: aware()}), 3, True) for name in ("graphs", "alternate_with")]
LOOKS += [(aware(5, **{name: OTHER}), 3, False) for name in ("graphs", "alternate_with")]


@pytest.mark.parametrize(("policy", "t", "looks"), LOOKS, ids=lambda value: type(value).__name__)
def test_a_policy_looks_where_a_part_of_it_does(policy, t, looks):
    planner = Planner(policy, CountingNetwork())
    if t > 1:
        planner.plan(0, *seen(0))
    assert planner.looks(t) == looks


# --- what the algorithm needs ---
LAZY = Needs(symmetric=True, lazy=True)  # as D²


def test_the_weights_that_it_alternates_with_are_what_the_algorithm_needs():
    policy = aware(alternate_with=aware())
    plain, needed = (Planner(policy, CountingNetwork(), needs).plan for needs in (None, LAZY))
    for t in range(4):
        (free,), (W,) = plain(t, *seen(t)).params, needed(t, *seen(t)).params
        best = optimal(t, symmetric=True).to_dense()
        np.testing.assert_allclose(W.to_dense(), (np.eye(N) + best) / 2, rtol=0, atol=1e-12)
        assert not free.is_symmetric


@pytest.mark.parametrize("needs", [Needs(symmetric=True), LAZY], ids=["symmetric", "and lazy"])
def test_a_learned_topology_is_made_symmetric_and_lazy_if_needed(needs):
    """(W + Wᵀ)/2, and of that (I + ·)/2."""
    policy = pol.LearnedTopology(2, "updates", observe=2, sketch=ExactSketch())
    plain, needed = (Planner(policy, CountingNetwork(ring(7)), given).plan for given in (None, needs))
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


# --- what it observes ---
@pytest.mark.parametrize("sketch", [CountSketch(4, seed=1), GaussianSketch(4, seed=1)])
def test_a_new_sketch_is_drawn_at_every_optimization(sketch):
    network = CountingNetwork()
    run(pol.HeterogeneityAware(2, sketch=sketch), 4, network)
    assert len(network.gathered) == 2
    for t, S in zip((0, 2), network.gathered, strict=True):
        assert torch.equal(S, sketch.fresh(t)(rows(t, "U")))
    assert sketch.fresh(0) != sketch.fresh(2)


def test_the_objective_may_be_the_parameters_and_is_by_default_a_count_sketch_of_the_updates():
    assert weights(run(aware(objective="parameters"), 4)) == [optimal(t, "X") for t in range(4)]
    assert pol.HeterogeneityAware() == pol.HeterogeneityAware(1, CountSketch(100), "updates")


@pytest.mark.parametrize(
    "options", [{"regularization": 0.05}, {"symmetric": True}, {"solver": "cvxpy"}, {"tolerance": 0.1}]
)
def test_options_reach_the_solver(options):
    assert weights(run(aware(**options), 1)) == [optimal(0, **options)]
    assert optimal(0, **options) != optimal(0)


@pytest.mark.parametrize("s", [0.0, 0.7])
def test_smoothing_keeps_a_share_of_the_old_gram_matrix(s):
    """Γ ← s Γ + (1 − s) Γ_new at every optimization; the first Γ is taken as it is."""
    planner, Gamma = Planner(aware(2, smoothing=s), CountingNetwork()), None
    for t in range(8):
        plan = planner.plan(t, *seen(t))
        if t % 2 == 0:
            new = mx.gram_matrix(rows(t, "U"))
            Gamma = new if Gamma is None else s * Gamma + (1 - s) * new
        np.testing.assert_array_equal(planner.gram, Gamma)
        assert plan.params == (mx.minimize_gme(Gamma, GRAPH).W,)


@pytest.mark.parametrize("graph", [ring(12), torus(4, 4), directed_ring(11)], ids=str)
def test_sketches_smaller_than_the_gram_matrix_are_kept_instead_of_it(graph):
    """The weights have the same bits, and a checkpoint holds the sketches."""
    seen_rows = [random_rows(graph.n, D, seed=t) for t in range(6)]
    seen_rows[3:5] = [1.01 * seen_rows[2], seen_rows[2] + 0]  # the same directions: no reason to solve again
    for options in ({}, {"growth": 1.5}, {"objective": "parameters"}, {"drop_below": 0.1}):
        planner = Planner(aware(**options), CountingNetwork(graph))
        for t, U in enumerate(seen_rows):
            plan = planner.plan(t, U, U, U)
            Gamma = mx.gram_matrix(U)
            assert planner.state.shared["gram"] is None
            if "growth" in options and t in (3, 4):
                assert plan.solve is None
            elif "drop_below" not in options and plan.solve:
                assert plan.params == (mx.minimize_gme(Gamma, graph).W,)
            assert plan.solve is None or plan.solve.objective == pytest.approx(
                mx.gradient_mixing_error(U, plan.params[0]), rel=1e-9
            )
            U.mul_(-1)  # mixing changes the rows, but not what was seen
            np.testing.assert_array_equal(planner.state.shared["sketches"], -U)
        resumed = Planner(aware(**options), CountingNetwork(graph))
        resumed.state.load(reloaded(planner.state, range(graph.n)))
        U = random_rows(graph.n, D, seed=9)
        assert resumed.plan(6, U, U, U).params == planner.plan(6, U, U, U).params


# --- a warm-up from step size 0 ---
def test_if_nothing_has_moved_the_gradients_are_used_and_the_next_mixing_optimizes_again():
    outcome = run(aware(10), 14, still={0, 1})
    assert weights(outcome) == [optimal(0, "G"), optimal(1, "G"), *[optimal(2)] * 8, *[optimal(10)] * 4]
    assert [t for t, (plan, _) in enumerate(outcome) if plan.solve] == [0, 1, 2, 10]
    saved, resumed = (Planner(aware(10), CountingNetwork()) for _ in range(2))
    saved.plan(0, *seen(0, still=True))
    resumed.state.load(reloaded(saved.state, range(N)))
    assert resumed.looks(1)


def test_if_nothing_has_moved_the_other_policys_turn_is_not_taken():
    """Even mixings optimize until something moves; at odd ones a sketch would be wasted."""
    outcome = run(aware(3, alternate_with=OTHER), 8, still={0, 1, 2, 3})
    assert weights(outcome)[::2] == [optimal(0, "G"), optimal(2, "G"), optimal(4), optimal(6)]
    assert (weights(outcome)[1::2], looked_at(outcome)) == ([OTHER] * 4, [0, 2, 4, 6])


def test_gradients_are_not_smoothed_into_updates():
    """They differ by the step size: Γ of G would outweigh Γ of U = ηG for a long time."""
    planner = Planner(aware(smoothing=0.9), CountingNetwork())
    of = lambda t, what: mx.gram_matrix(rows(t, what))  # noqa: E731
    expected = [of(0, "G"), of(1, "U"), 0.9 * of(1, "U") + 0.1 * of(2, "U"), of(3, "G")]
    for t, Gamma in enumerate(expected):
        planner.plan(t, *seen(t, still=t in (0, 3)))
        np.testing.assert_allclose(planner.gram, Gamma, rtol=1e-14)


def test_weights_still_mix_if_everything_is_zero():
    plan = Planner(aware(), CountingNetwork()).plan(0, torch.zeros(N, D, dtype=torch.float64))
    np.testing.assert_allclose(plan.params_product, mx.uniform(GRAPH).to_dense(), atol=1e-9)


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
    planner, used = Planner(aware(2), CountingNetwork()), [optimal(0), optimal(0), optimal(0), optimal(6)]
    for t, W in zip((0, 2, 4, 6), used, strict=True):
        failing.update({"now"} if t in (2, 4) else ())
        plan = planner.plan(t, *seen(t))
        assert plan.params == (W,)
        assert plan.solve.solved != bool(failing)
        assert not failing or plan.solve.status == "iteration limit reached"
        failing.clear()


def test_a_failed_first_solve_is_an_error(failing):
    failing.add("now")
    refused(SolverError, "GME-opt was not solved: iteration limit reached after 250 iterations", run, aware(), 1)


# --- another graph, another run ---
def test_the_program_is_laid_out_once_per_graph(monkeypatch):
    made, original = [], mx.GmeProblem.__init__
    laid_out = lambda self, graph, **options: made.append(graph) or original(self, graph, **options)  # noqa: E731
    monkeypatch.setattr(mx.GmeProblem, "__init__", laid_out)
    planner = Planner(aware(), CountingNetwork())
    for t in range(5):
        planner.network = CountingNetwork(GRAPH if t < 4 else complete(N))
        plan = planner.plan(t, *seen(t))
    assert (made, plan.params[0].graph) == ([GRAPH, complete(N)], complete(N))


# --- policies that do not look, and policies made of policies ---
def test_fixed_weights_are_the_same_at_every_mixing_and_gather_nothing():
    assert run(pol.Fixed(OTHER), 3) == [(Plan((OTHER,)), 0)] * 3


def test_alternating_hands_on_t_itself():
    """An aware policy at every second place sees t = 1, 3, 5, …: with H = 3, it looks at the first from 0, 3, 6, 9."""
    assert looked_at(run(pol.Alternating([OTHER, aware(3)]), 10)) == [1, 3, 7, 9]


def test_a_product_of_products_is_a_product_and_reports_its_solve():
    ((plan, gathers),) = run(pol.Product([pol.Product([asymmetric(N), aware()]), OTHER]), 1)
    assert plan.params == (asymmetric(N), optimal(0), OTHER)
    assert plan.solve is not None
    assert gathers == 1


def test_decoupled_has_two_channels():
    alone = Plan((OTHER, asymmetric(N)))  # without a channel of their own, updates go the way of the parameters
    np.testing.assert_array_equal(alone.updates_product, alone.params_product)
    ((plan, _),) = run(pol.Decoupled(params=OTHER, updates=pol.Product([aware(), asymmetric(N)])), 1)
    assert plan.params == (OTHER,)
    assert plan.updates == (optimal(0), asymmetric(N))
    assert plan.solve is not None
    np.testing.assert_array_equal(plan.params_product, OTHER.to_dense())
    np.testing.assert_array_equal(plan.updates_product, optimal(0).to_dense() @ asymmetric(N).to_dense())


def test_a_product_with_two_channels_is_rejected():
    with pytest.raises(MixingError, match="a second channel is not defined; put it inside Decoupled"):
        run(pol.Product([pol.Decoupled(OTHER, OTHER), OTHER]), 1)


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
