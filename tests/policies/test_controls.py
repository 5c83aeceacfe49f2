"""Controls: rows that are not those of the nodes, in place of theirs, and nothing else that is different."""

import numpy as np
import pytest
import torch

import mixwise.mixing as mx
from builders import cases, refused
from mixwise.errors import MixingError
from mixwise.graphs import ring, social_network
from mixwise.network import SimulatedNetwork
from mixwise.parts import OptionError, words
from mixwise.policies import (
    AwarePairs,
    HeterogeneityAware,
    HeterogeneityAwareMatchings,
    LearnedTopology,
    Pairs,
    Product,
)
from mixwise.policies.controls import controls, permuted, uncontrolled
from mixwise.policies.edge_coloring import mixed_gram
from mixwise.seeding import numpy_generator
from mixwise.sketch import ExactSketch
from planning import Planner, reloaded

N, LOOKS = 8, 60
RING = ring(N)
OTHER = mx.metropolis_hastings(RING)
EXACT = ExactSketch()


def paired_rows(t: int) -> torch.Tensor:
    """Rows (n, d) in which neighbors 2i and 2i + 1 are opposite: the ring can cancel all of it."""
    half = np.random.default_rng(t).standard_normal((N // 2, 6))
    return torch.from_numpy(np.stack([half, -half], axis=1).reshape(N, 6))


def left(W, rows) -> float:
    return mx.gradient_mixing_error(rows, W) / mx.gradient_mixing_error(rows, np.eye(N))


def shares(policy, graph=RING) -> np.ndarray:
    """The share of the disagreement that each of several mixings leaves."""
    planner = Planner(policy, SimulatedNetwork(graph))
    return np.array([left(planner.plan(t, paired_rows(t)).params_product, paired_rows(t)) for t in range(LOOKS)])


# --- permuted ---
def test_the_permuted_control_leaves_what_weights_for_random_rows_leave_and_the_policy_less():
    random = []
    for t in range(LOOKS):
        order = np.random.default_rng(1000 + t).permutation(N)
        random.append(left(mx.minimize_gme(mx.gram_matrix(paired_rows(t)[order]), RING).W, paired_rows(t)))
    policy, control = (shares(HeterogeneityAware(sketch=EXACT, control=c)) for c in (None, "permuted"))
    assert policy.max() < 1e-6
    assert np.mean(random) > 0.2
    error = np.hypot(np.std(random), control.std()) / np.sqrt(LOOKS)
    assert abs(control.mean() - np.mean(random)) < 3 * error


def test_rows_are_permuted_anew_at_every_look_and_for_every_seed_and_none_is_lost():
    rows = torch.arange(32.0).reshape(16, 2)
    orders = [tuple(permuted(rows, seed, t)[:, 0].tolist()) for seed in (0, 1) for t in range(20)]
    assert len(set(orders)) == 40
    assert all(sorted(order) == rows[:, 0].tolist() for order in orders)
    assert torch.equal(permuted(rows, 1, 3), torch.from_numpy(permuted(rows.numpy(), 1, 3)))


@cases(
    "objective, smoothing",
    ("updates", 0.0),
    ("parameters", 0.0),
    ("both", 0.5),
)
def test_a_control_sees_the_same_sketches_in_the_order_of_its_stream(objective, smoothing):
    """Solver, period and alternation stay; a warm-up in which nothing has moved is permuted as well."""
    seen = [(paired_rows(t) * (t > 0), paired_rows(50 + t), paired_rows(90 + t)) for t in range(5)]
    options = {"period": 2, "sketch": EXACT, "alternate_with": OTHER, "objective": objective, "smoothing": smoothing}
    control = Planner(HeterogeneityAware(control="permuted", **options), SimulatedNetwork(RING), seed=5)
    policy = Planner(HeterogeneityAware(**options), SimulatedNetwork(RING), seed=5)
    for t, (U, G, X) in enumerate(seen):
        order = numpy_generator(5, "permuted", t).permutation(N)
        assert control.looks(t) == policy.looks(t)
        found = control.plan(t, U, G, X)
        assert found.params == policy.plan(t, U[order], G[order], X[order]).params
        assert control.network.traffic.sketches == policy.network.traffic.sketches


NEIGHBORS = [HeterogeneityAware(sketch=EXACT, solver="local"), AwarePairs(2, EXACT)]
GATHERED = [HeterogeneityAwareMatchings(2, EXACT), LearnedTopology(source="updates", sketch=EXACT)]


@pytest.mark.parametrize("policy", [*NEIGHBORS, *GATHERED], ids=lambda policy: type(policy).__name__)
def test_every_policy_that_looks_has_a_permuted_control(policy):
    graph, made = social_network(), type(policy)
    control = made(**{**vars(policy), "control": "permuted"})
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((graph.n, 6)))
    order = numpy_generator(2, "permuted", 0).permutation(graph.n)
    permuted_rows = Planner(policy, SimulatedNetwork(graph), seed=2).plan(0, rows[order], rows=rows[order])
    assert Planner(control, SimulatedNetwork(graph), seed=2).plan(0, rows, rows=rows).params == permuted_rows.params


def test_labels_are_permuted_too():
    counts = np.eye(N, dtype=np.int64) * 9 + 1
    order = numpy_generator(0, "permuted", 0).permutation(N)
    control = Planner(LearnedTopology(control="permuted"), SimulatedNetwork(RING), label_counts=counts)
    shuffled = Planner(LearnedTopology(), SimulatedNetwork(RING), label_counts=counts[order])
    assert control.plan(0, paired_rows(0)).params == shuffled.plan(0, paired_rows(0)).params


@pytest.mark.parametrize("policy", NEIGHBORS, ids=lambda policy: type(policy).__name__)
def test_neighbor_only_policies_are_permuted_in_simulation_only(policy):
    network = SimulatedNetwork(RING)
    network.nodes = range(N // 2)  # of one process among two
    control = type(policy)(**{**vars(policy), "control": "permuted"})
    rows = paired_rows(0)[: N // 2]
    refused(MixingError, "owns 4 of 8 nodes.*run it in one process", Planner(control, network).plan, 0, rows)


# --- predicted ---
def test_predicted_noise_is_mixed_by_the_weights_that_were_used():
    options = {"period": 3, "alternate_with": OTHER, "objective": "parameters"}
    planner, Gamma = (
        Planner(HeterogeneityAware(control="predicted", **options), SimulatedNetwork(RING)),
        np.zeros((N, N)),
    )
    J = np.full((N, N), 1 / N)
    for t in range(10):
        Gamma = Gamma + np.eye(N) - J
        assert not planner.looks(t)
        plan = planner.plan(t)  # of the nodes it sees nothing
        if t % 3 == 0:
            np.testing.assert_allclose(planner.gram, Gamma, atol=1e-12)
        if plan.solves:
            (solve,) = plan.solves
            assert solve.objective == pytest.approx(mx.minimize_gme(Gamma, RING).objective, rel=1e-9)
        assert (plan.params == (OTHER,)) == (t % 2 == 1)
        Gamma = mixed_gram(Gamma, plan.params[0])
        planner.state.load(reloaded(planner.state, range(N)))
    assert planner.network.traffic.sketches == 0


def test_a_predicted_drift_stays():
    planner, B = Planner(HeterogeneityAware(control="predicted-drift"), SimulatedNetwork(RING)), np.zeros((N, N))
    for t in range(6):
        B = B + np.eye(N)
        W = planner.plan(t).params[0]
        np.testing.assert_allclose(planner.gram, mx.gram_matrix(B), atol=1e-12)
        B = W.to_dense().T @ B


def test_predictions_stay_small_however_long_a_run_is():
    planner = Planner(HeterogeneityAware(10**6, control="predicted", alternate_with=OTHER), SimulatedNetwork(RING))
    for t in range(2000):
        planner.plan(t)
    assert np.abs(planner.state.shared["model"]).max() < 10


@cases(
    "make, error, says",
    (lambda: HeterogeneityAware(control="predicted", solver="local"), MixingError, "control needs all of Γ"),
    (lambda: HeterogeneityAware(control="shuffled"), OptionError, "permuted"),
    (lambda: AwarePairs(control="predicted"), OptionError, "permuted"),
    (
        lambda: Planner(HeterogeneityAware(control="predicted"), SimulatedNetwork(ring(5000))),
        MixingError,
        "allowed are 4096 nodes; use 'permuted'",
    ),
)
def test_a_control_that_cannot_be_is_refused(make, error, says):
    refused(error, says, make)


# --- in comparisons ---
def test_a_control_knows_the_policy_that_it_is_the_control_of():
    policy = Product([HeterogeneityAware(10, control="permuted"), OTHER, AwarePairs()])
    assert list(controls(policy)) == ["permuted", None]
    assert uncontrolled(policy) == Product([HeterogeneityAware(10), OTHER, AwarePairs()])
    assert list(controls(Pairs())) == []
    assert uncontrolled(Pairs()) == Pairs()
    assert words(HeterogeneityAware(10, EXACT, control="permuted")).endswith("exact updates in a random order")
    assert words(HeterogeneityAware(10, control="predicted")).endswith("predicted noise")
