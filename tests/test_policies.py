"""Policies: which weights at which mixing, when a sketch is taken, and what happens when a solve fails."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixwise.errors import MixingError, SolverError
from mixwise.graphs import Graph, complete, ring, torus
from mixwise.mixing import (
    GmeProblem,
    GmeSolution,
    MixingMatrix,
    SolveStatus,
    gram_matrix,
    lazy,
    max_degree,
    metropolis_hastings,
    minimize_gme,
    uniform,
)
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, Decoupled, Fixed, HeterogeneityAware, Observation, Plan, Product, RandomChoice
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch

N, D = 6, 9
GRAPH = ring(N)
OTHER = metropolis_hastings(GRAPH)


class CountingNetwork(SimulatedNetwork):
    """Remembers what was gathered."""

    def __init__(self, graph: Graph = GRAPH) -> None:
        super().__init__(graph)
        self.gathered: list[torch.Tensor] = []

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        self.gathered.append(rows.clone())
        return super().gather(rows)


def rows(t: int, what: str, n: int = N) -> torch.Tensor:
    seed = 1000 * t + {"U": 0, "G": 1, "X": 2}[what]
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def observation(t: int, still: bool = False, n: int = N) -> Observation:
    """Other rows at every mixing; `still`: the optimizer has not moved."""
    U = torch.zeros(n, D, dtype=torch.float64) if still else rows(t, "U", n)
    return Observation(U, rows(t, "G", n), rows(t, "X", n))


def run(policy, steps: int, network: CountingNetwork | None = None, still=()) -> list[tuple[Plan, int]]:
    """The plans of mixings 0 … steps − 1, and how often each gathered."""
    network = network or CountingNetwork()
    outcome = []
    for t in range(steps):
        before = len(network.gathered)
        plan = policy.plan(t, observation(t, t in still), network)
        outcome.append((plan, len(network.gathered) - before))
    return outcome


def optimal(t: int, what: str = "U", **options) -> MixingMatrix:
    return minimize_gme(gram_matrix(rows(t, what)), GRAPH, **options).W


def aware(period: int = 1, **options) -> HeterogeneityAware:
    return HeterogeneityAware(period, **{"sketch": ExactSketch(), **options})


# --- when it optimizes, and what it uses ---
@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_optimizes_when_t_is_a_multiple_of_the_period_and_keeps_the_weights_in_between(period):
    for t, (plan, gathers) in enumerate(run(aware(period), 12)):
        last = t - t % period
        assert plan.params == (optimal(last),)
        assert plan.updates is None
        assert gathers == (1 if t == last else 0)
        assert (plan.solve is not None) == (t == last)


@pytest.mark.parametrize("period", [1, 2, 4, 10])
def test_even_mixings_use_the_optimized_weights_odd_ones_the_other(period):
    for t, (plan, gathers) in enumerate(run(aware(period, alternate_with=OTHER), 21)):
        if t % 2:
            assert plan.params == (OTHER,)
        else:
            assert plan.params == (optimal(t - t % period),)
        assert gathers == (1 if t % 2 == 0 and t % period == 0 else 0)


def test_an_odd_period_optimizes_at_odd_mixings_too_for_the_next_even_one():
    outcome = run(aware(3, alternate_with=OTHER), 10)
    assert [gathers for _, gathers in outcome] == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    expected = [optimal(0), OTHER, optimal(0), OTHER, optimal(3), OTHER, optimal(6), OTHER, optimal(6), OTHER]
    assert [plan.params for plan, _ in outcome] == [(W,) for W in expected]
    assert [t for t, (plan, _) in enumerate(outcome) if plan.solve] == [0, 3, 6, 9]


@pytest.mark.parametrize("period", range(1, 8))
@pytest.mark.parametrize("alternate", [False, True])
def test_a_sketch_is_taken_only_when_its_weights_will_be_used(period, alternate):
    steps = 8 * period
    outcome = run(aware(period, alternate_with=OTHER if alternate else None), steps + period)
    taken = [t for t, (_, gathers) in enumerate(outcome) if gathers]
    for t, following in zip(taken, [*taken[1:], len(outcome)], strict=True):
        if t < steps:
            assert any(outcome[s][0].params == (optimal(t),) for s in range(t, following))
    if not alternate:
        assert len(taken) == 9


def test_alternating_with_a_policy():
    turns = run(aware(alternate_with=Alternating(Fixed(lazy(OTHER)), Fixed(OTHER))), 4)
    assert [plan.params for plan, _ in turns] == [(optimal(0),), (OTHER,), (optimal(2),), (OTHER,)]


def test_it_says_when_it_will_look_at_the_updates():
    """`observes(t)` before the plan; whoever says no gets no updates."""
    for period in (1, 2, 3, 4):
        for other in (None, OTHER):
            policy, network = aware(period, alternate_with=other), CountingNetwork()
            for t in range(12):
                seen, before = observation(t), len(network.gathered)
                observes = policy.observes(t)
                if not observes:
                    seen = Observation(None, seen.gradients, seen.parameters)
                policy.plan(t, seen, network)
                assert (len(network.gathered) > before) == observes
    assert not Fixed(OTHER).observes(0)
    assert not RandomChoice([OTHER]).observes(0)
    assert Product(Fixed(OTHER), aware()).observes(1)
    assert Alternating(Fixed(OTHER), aware()).observes(1)
    assert not Alternating(Fixed(OTHER), aware()).observes(0)
    assert Decoupled(params=Fixed(OTHER), updates=aware()).observes(0)


# --- what it observes ---
@pytest.mark.parametrize("sketch", [CountSketch(4, seed=1), GaussianSketch(4, seed=1)])
def test_a_new_sketch_is_drawn_at_every_optimization(sketch):
    policy, network = HeterogeneityAware(2, sketch=sketch), CountingNetwork()
    run(policy, 4, network)
    assert len(network.gathered) == 2
    for t, S in zip((0, 2), network.gathered, strict=True):
        assert torch.equal(S, sketch.fresh(t)(rows(t, "U")))
    assert sketch.fresh(0) != sketch.fresh(2)
    np.testing.assert_array_equal(policy.gram, gram_matrix(network.gathered[-1]))


def test_the_default_is_a_count_sketch_of_dimension_100():
    assert HeterogeneityAware().estimate.sketch == CountSketch(100)
    assert (HeterogeneityAware().period, HeterogeneityAware().estimate.objective) == (1, "updates")


def test_the_objective_may_be_the_parameters():
    for t, (plan, _) in enumerate(run(aware(objective="parameters"), 4)):
        assert plan.params == (optimal(t, "X"),)


@pytest.mark.parametrize("options", [{"regularization": 0.05}, {"symmetric": True}])
def test_options_reach_the_solver(options):
    (plan, _), *_ = run(aware(**options), 1)
    assert plan.params == (optimal(0, **options),)
    assert plan.params != (optimal(0),)


def test_smoothing_mixes_the_old_gram_matrix_in():
    """Γ ← s Γ + (1 − s) Γ_new at every optimization; the first Γ is taken as it is."""
    s, policy, network = 0.7, aware(2, smoothing=0.7), CountingNetwork()
    Gamma = None
    for t in range(8):
        plan = policy.plan(t, observation(t), network)
        if t % 2 == 0:
            new = gram_matrix(rows(t, "U"))
            Gamma = new if Gamma is None else s * Gamma + (1 - s) * new
        np.testing.assert_array_equal(policy.gram, Gamma)
        assert plan.params == (minimize_gme(Gamma, GRAPH).W,)


def test_without_smoothing_the_past_is_forgotten():
    policy = aware()
    run(policy, 5)
    np.testing.assert_array_equal(policy.gram, gram_matrix(rows(4, "U")))


# --- a warm-up from step size 0 ---
def test_if_nothing_has_moved_the_gradients_are_used_and_the_next_mixing_optimizes_again():
    outcome = run(aware(10), 14, still={0, 1})
    used = [optimal(0, "G"), optimal(1, "G"), *[optimal(2)] * 8, *[optimal(10)] * 4]
    assert [plan.params for plan, _ in outcome] == [(W,) for W in used]
    assert [t for t, (plan, _) in enumerate(outcome) if plan.solve] == [0, 1, 2, 10]


def test_if_nothing_has_moved_the_other_policys_turn_is_not_taken():
    """Even mixings optimize until something moves; at odd ones a sketch would be wasted."""
    outcome = run(aware(3, alternate_with=OTHER), 8, still={0, 1, 2, 3})
    used = [optimal(0, "G"), OTHER, optimal(2, "G"), OTHER, optimal(4), OTHER, optimal(6), OTHER]
    assert [plan.params for plan, _ in outcome] == [(W,) for W in used]
    assert [t for t, (_, gathers) in enumerate(outcome) if gathers] == [0, 2, 4, 6]


def test_gradients_are_not_smoothed_into_updates():
    """They differ by the step size: Γ of G would outweigh Γ of U = ηG for a long time."""
    policy, network = aware(smoothing=0.9), CountingNetwork()
    policy.plan(0, observation(0, still=True), network)
    np.testing.assert_array_equal(policy.gram, gram_matrix(rows(0, "G")))
    policy.plan(1, observation(1), network)
    np.testing.assert_array_equal(policy.gram, gram_matrix(rows(1, "U")))
    policy.plan(2, observation(2), network)
    np.testing.assert_allclose(policy.gram, 0.9 * gram_matrix(rows(1, "U")) + 0.1 * gram_matrix(rows(2, "U")))
    policy.plan(3, observation(3, still=True), network)
    np.testing.assert_array_equal(policy.gram, gram_matrix(rows(3, "G")))


def test_all_zero_gives_weights_that_mix():
    zero = torch.zeros(N, D, dtype=torch.float64)
    plan = aware().plan(0, Observation(zero, zero, zero), CountingNetwork())
    np.testing.assert_allclose(plan.params_product, uniform(GRAPH).to_dense(), atol=1e-9)


# --- a solve that fails ---
@pytest.fixture
def failing(monkeypatch):
    """Γ solved as usual, except while `failing` is not empty."""
    solve, now = GmeProblem.solve, set()

    def sometimes(self, gram, regularization=0.0):
        if now:
            return GmeSolution(None, float("nan"), SolveStatus.NOT_CONVERGED, 250, 0.1, 1.0)
        return solve(self, gram, regularization)

    monkeypatch.setattr(GmeProblem, "solve", sometimes)
    return now


def test_a_failed_solve_keeps_the_previous_weights_and_is_reported(failing):
    policy, network, first = aware(2), CountingNetwork(), optimal(0)
    assert policy.plan(0, observation(0), network).solve.solved
    failing.add("now")
    for t in (2, 4):
        plan = policy.plan(t, observation(t), network)
        assert plan.params == (first,)
        assert not plan.solve.solved
        assert plan.solve.status == "iteration limit reached"
    failing.clear()
    assert optimal(0) == policy.W
    plan = policy.plan(6, observation(6), network)
    assert plan.solve.solved
    assert plan.params == (optimal(6),)


def test_a_failed_first_solve_is_an_error(failing):
    failing.add("now")
    with pytest.raises(SolverError, match="GME-opt was not solved: iteration limit reached after 250 iterations"):
        aware().plan(0, observation(0), CountingNetwork())


# --- another graph, another run ---
def test_the_program_is_laid_out_once_per_graph(monkeypatch):
    made = []
    original = GmeProblem.__init__
    monkeypatch.setattr(GmeProblem, "__init__", lambda self, *a, **k: (made.append(a[0]), original(self, *a, **k))[1])
    policy = aware()
    run(policy, 4)
    assert made == [GRAPH]
    plan = policy.plan(4, observation(4), CountingNetwork(complete(N)))
    assert made == [GRAPH, complete(N)]
    assert plan.params[0].graph == complete(N)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("still", [set(), {0, 1, 2}])
def test_a_run_goes_on_from_its_state(cut, still):
    """What is saved and loaded again plans on as if nothing had happened, to the last bit."""

    def new() -> HeterogeneityAware:
        return aware(3, smoothing=0.5, alternate_with=OTHER)

    network, whole, first, second = CountingNetwork(), new(), new(), new()
    expected = [whole.plan(t, observation(t, t in still), network).params for t in range(9)]
    for t in range(cut):
        first.plan(t, observation(t, t in still), network)
    second.load_state(*first.state())
    found = [second.plan(t, observation(t, t in still), network).params for t in range(cut, 9)]
    assert found == expected[cut:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period = 0; the weights are optimized every 1, 2, 3, … mixings"),
        ({"period": -2}, "period = -2"),
        ({"smoothing": 1.0}, r"smoothing = 1.0; the share of the old Γ lies in \[0, 1\)"),
        ({"smoothing": -0.1}, "smoothing = -0.1"),
        ({"smoothing": float("nan")}, "smoothing = nan"),
        ({"objective": "gradients"}, 'objective = \'gradients\'; choose "updates", "parameters" or "both"'),
    ],
)
def test_refusals(options, message):
    with pytest.raises(MixingError, match=message):
        HeterogeneityAware(**options)


# --- policies that do not look ---
def test_fixed():
    for plan, gathers in run(Fixed(OTHER), 3):
        assert plan == Plan((OTHER,))
        assert gathers == 0


def test_random_choice_draws_as_often_as_asked():
    """4,000 draws: each share within 5 standard errors, none of what has no chance."""
    matrices, chances = [OTHER, lazy(OTHER), max_degree(torus(2, 3)), lazy(lazy(OTHER))], [0.5, 0.3, 0.2, 0.0]
    drawn = [plan.params[0] for plan, _ in run(RandomChoice(matrices, chances, seed=3), 4000)]
    for W, q in zip(matrices, chances, strict=True):
        share = sum(d is W for d in drawn) / 4000
        assert abs(share - q) <= 5 * (q * (1 - q) / 4000) ** 0.5


def test_random_choice_is_decided_by_seed_and_t():
    """Whoever asks, whenever: every process draws the same matrix at mixing t."""
    matrices = [OTHER, lazy(OTHER), lazy(lazy(OTHER))]

    def drawn(seed: int, order) -> dict[int, MixingMatrix]:
        policy = RandomChoice(matrices, seed=seed)
        return {t: policy.plan(t, observation(t), CountingNetwork()).params[0] for t in order}

    assert drawn(0, range(50)) == drawn(0, reversed(range(50)))
    assert drawn(0, range(50)) != drawn(1, range(50))
    assert set(drawn(0, range(50)).values()) == set(matrices)


def test_random_choice_of_one():
    assert all(plan.params == (OTHER,) for plan, _ in run(RandomChoice([OTHER]), 5))


@pytest.mark.parametrize("chances", [[0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0], []])
def test_random_choice_refusals(chances):
    with pytest.raises(MixingError, match=r"probabilities = \[.*\] for 2 policies; one each, none negative, sum 1"):
        RandomChoice([OTHER, OTHER], chances)
    with pytest.raises(MixingError, match="a random choice needs at least one policy or matrix"):
        RandomChoice([])


# --- policies made of policies ---
def test_alternating_takes_turns():
    A, B, C = OTHER, lazy(OTHER), lazy(lazy(OTHER))
    plans = [plan.params[0] for plan, _ in run(Alternating(Fixed(A), Fixed(B), Fixed(C)), 7)]
    assert plans == [A, B, C, A, B, C, A]


def test_alternating_hands_on_t_itself():
    """An aware policy at every second place sees t = 1, 3, 5, …: with H = 3, it looks at the first from 0, 3, 6, 9."""
    outcome = run(Alternating(Fixed(OTHER), aware(3)), 10)
    assert [t for t, (_, gathers) in enumerate(outcome) if gathers] == [1, 3, 7, 9]


def asymmetric(shift: int) -> MixingMatrix:
    return MixingMatrix.from_dense(0.6 * np.eye(N) + 0.4 * np.roll(np.eye(N), shift, axis=1), complete(N))


def test_a_product_applies_the_first_policy_first():
    A = MixingMatrix.from_dense(np.eye(N)[[1, 0, 2, 3, 4, 5]], complete(N))  # two permutations that do not commute
    B = MixingMatrix.from_dense(np.eye(N)[[0, 2, 1, 3, 4, 5]], complete(N))
    (plan, _), *_ = run(Product(Fixed(A), Fixed(B)), 1)
    assert plan.params == (A, B)
    np.testing.assert_array_equal(plan.params_product, A.to_dense() @ B.to_dense())
    assert (plan.params_product != B.to_dense() @ A.to_dense()).any()
    network, X = SimulatedNetwork(complete(N)), rows(0, "X")
    two_rounds = network.mix(network.mix(X, A), B)
    np.testing.assert_array_equal(two_rounds.numpy(), plan.params_product.T @ X.numpy())


def test_a_product_of_products_is_a_product_and_reports_its_solve():
    inner = Product(Fixed(asymmetric(1)), aware())
    (plan, gathers), *_ = run(Product(inner, Fixed(OTHER)), 1)
    assert plan.params == (asymmetric(1), optimal(0), OTHER)
    assert plan.solve is not None
    assert gathers == 1


def test_decoupled_has_two_channels():
    (plan, _), *_ = run(Decoupled(params=Fixed(OTHER), updates=Product(aware(), Fixed(asymmetric(1)))), 1)
    assert plan.params == (OTHER,)
    assert plan.updates == (optimal(0), asymmetric(1))
    assert plan.solve is not None
    np.testing.assert_array_equal(plan.params_product, OTHER.to_dense())
    np.testing.assert_array_equal(plan.updates_product, optimal(0).to_dense() @ asymmetric(1).to_dense())


def test_updates_go_the_way_of_the_parameters_unless_told_otherwise():
    plan = Plan((OTHER, asymmetric(2)))
    np.testing.assert_array_equal(plan.updates_product, plan.params_product)


def test_a_product_with_two_channels_is_refused():
    with pytest.raises(MixingError, match="a second channel has no meaning; put it inside Decoupled"):
        run(Product(Decoupled(Fixed(OTHER), Fixed(OTHER)), Fixed(OTHER)), 1)


@pytest.mark.parametrize(("combined", "message"), [(Alternating, "alternating needs"), (Product, "a product needs")])
def test_combinations_of_nothing_are_refused(combined, message):
    with pytest.raises(MixingError, match=f"{message} at least one policy"):
        combined()


@settings(max_examples=20)
@given(period=st.integers(1, 4), cut=st.integers(0, 6), smoothing=st.sampled_from([0.0, 0.5]))
def test_combinations_go_on_from_their_state(period, cut, smoothing):
    def new():
        return Product(Alternating(aware(period, smoothing=smoothing), Fixed(OTHER)), Fixed(lazy(OTHER)))

    network, whole, first, second = CountingNetwork(), new(), new(), new()
    expected = [whole.plan(t, observation(t), network).params for t in range(8)]
    for t in range(cut):
        first.plan(t, observation(t), network)
    second.load_state(*first.state())
    assert [second.plan(t, observation(t), network).params for t in range(cut, 8)] == expected[cut:]
