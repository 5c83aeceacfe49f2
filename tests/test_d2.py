import itertools

import numpy as np
import pytest
import torch

from mixwise.algorithms import D2, DSGD
from mixwise.algorithms.exact import check_d2_stability
from mixwise.errors import MixingError, TrainingError
from mixwise.graphs import Graph, chain, complete, random_connected, ring, social_network, torus
from mixwise.mixing import (
    MixingMatrix,
    eigenvalues,
    gram_matrix,
    lazy,
    metropolis_hastings,
    minimize_gme,
    symmetrized,
    uniform,
)
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Decoupled, Fixed, Policy, Product
from mixwise.tasks import random_quadratics
from mixwise.training import Training, factor


def random_weights(n, seed):
    """(I + (W + Wᵀ)/2)/2 for the weights that fit random gradients on a random graph: not uniform, symmetric, lazy."""
    graph = random_connected(n, seed=seed)
    G = np.random.default_rng(seed).standard_normal((n, 4))
    return lazy(symmetrized(minimize_gme(gram_matrix(G), graph, regularization=0.1).W))


def make_training(task, W, algorithm, lr, schedule=None):
    scheduler = None if schedule is None else lambda o: torch.optim.lr_scheduler.LambdaLR(o, schedule)
    return Training(
        task,
        SimulatedNetwork(W.graph),
        Fixed(W),
        algorithm,
        lambda rows: torch.optim.SGD(rows, lr=lr),
        scheduler=scheduler,
    )


def distance(training):
    """(1/n) Σ ‖x_i − x*‖², relative to that of the start."""
    task = training.task
    start = task.evaluate(task.initial(range(task.nodes)))["distance_to_optimum"]
    return task.evaluate(training.X)["distance_to_optimum"] / start


# --- the same as D² ---


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_is_d2_as_published(seed, noise):
    # Tang et al. 2018, Algorithm 1, with nodes as columns: X⁺ = (2X − X_prev − η(G − G_prev)) W.
    n, eta = 9, 0.01
    task, W = random_quadratics(n, dim=6, noise=noise, seed=seed), random_weights(n, seed)
    training = make_training(task, W, D2(), eta)
    Wc = torch.from_numpy(W.to_dense())
    X = task.initial(range(n)).T
    X_prev = G_prev = None
    for t in range(50):
        G = task.losses_and_gradients(X.T.contiguous(), range(n), t)[1].T
        half = X - eta * G if t == 0 else 2 * X - X_prev - eta * (G - G_prev)
        X_prev, G_prev, X = X, G, half @ Wc
        training.step()
        # Sums of a dozen products of numbers of size 1 to 10, carried through 50 stable steps.
        torch.testing.assert_close(training.X.T, X, rtol=0, atol=1e-11)


def test_the_mean_of_the_nodes_takes_the_step_of_sgd_with_the_mean_gradient():
    # 𝟏ᵀX⁺ = 𝟏ᵀ(2X − X_prev − η(G − G_prev)) telescopes to x̄⁺ = x̄ − η ḡ, also when η changes.
    n = 8
    task, W = random_quadratics(n, dim=5, noise=0.1), random_weights(n, 0)
    at = factor(40, warmup=0.2, decay_at=(0.5,))
    training = make_training(task, W, D2(), 0.01, at)
    for t in range(40):
        mean = training.X.mean(0)
        step = training.step()
        torch.testing.assert_close(training.X.mean(0), mean - 0.01 * at(t) * step.gradients.mean(0), rtol=0, atol=1e-12)


# --- exact where D-SGD is not ---


@pytest.mark.parametrize("seed", range(3))
def test_it_converges_to_the_optimum_where_dsgd_does_not(seed):
    n = 8
    task, W = random_quadratics(n, dim=5, noise=0.0, seed=seed), random_weights(n, seed)
    d2, dsgd = (make_training(task, W, algorithm(), 0.4 / task.smoothness) for algorithm in (D2, DSGD))
    for _ in range(500):
        d2.step()
        dsgd.step()
    assert distance(d2) < 1e-8
    settled = distance(dsgd)
    for _ in range(200):
        dsgd.step()
    assert distance(dsgd) == pytest.approx(settled, rel=1e-3)  # it has arrived, elsewhere
    assert settled > 1e-5


def test_it_stays_exact_when_the_learning_rate_changes():
    n, steps = 8, 1500
    task, W = random_quadratics(n, dim=5, noise=0.0), random_weights(n, 0)
    # All changes fall into a time when the gradients are still far from 0.
    schedule = factor(steps, warmup=0.01, decay_at=(0.015, 0.02), gamma=0.6)
    lr = 0.8 / task.smoothness
    training = make_training(task, W, D2(), lr, schedule)
    # The published form with today's η in front of both gradients does not telescope: it ends somewhere else.
    Wt = torch.from_numpy(W.to_dense().T.copy())
    X = task.initial(range(n))
    X_prev = G_prev = None
    for t in range(steps):
        training.step()
        eta = lr * schedule(t)
        G = task.losses_and_gradients(X, range(n), t)[1]
        half = X - eta * G if t == 0 else 2 * X - X_prev - eta * (G - G_prev)
        X_prev, G_prev, X = X, G, Wt @ half
    assert distance(training) < 1e-8
    start = task.evaluate(task.initial(range(n)))["distance_to_optimum"]
    assert not task.evaluate(X)["distance_to_optimum"] < 1e-3 * start


# --- stability ---


def growth(W):
    """By what factor X⁺ = Wᵀ(2X − X_prev) scales what is not the mean, per step, in the long run."""
    dense = W.to_dense().T
    n = len(dense)
    away = np.eye(n) - 1 / n
    state = [away @ np.random.default_rng(0).standard_normal((n, 3)) for _ in range(2)]
    logs = []
    for _ in range(4000):
        state = [away @ dense @ (2 * state[0] - state[1]), state[0]]
        size = np.sqrt(sum(np.square(part).sum() for part in state))
        if size == 0:
            return 0.0
        logs.append(np.log(size))
        state = [part / size for part in state]
    return float(np.exp(np.mean(logs[len(logs) // 3 :])))


def accepted(W):
    try:
        check_d2_stability(W)
    except MixingError:
        return False
    return True


def pair(weight):
    return MixingMatrix.from_dense(np.array([[1 - weight, weight], [weight, 1 - weight]]))


def circulant(n, *shares):
    """Each node keeps the first share and sends the k-th to the k-th node after it; eigenvalues are complex."""
    dense = sum(share * np.roll(np.eye(n), k, axis=1) for k, share in enumerate(shares))
    return MixingMatrix.from_dense(dense)


@pytest.mark.parametrize("eigenvalue", [-1, -0.8, -0.4, -0.335, -0.332, -0.2, -1e-3, 0, 0.1, 0.5, 0.9, 0.99])
def test_a_real_eigenvalue_is_accepted_if_and_only_if_the_recursion_contracts(eigenvalue):
    W = pair((1 - eigenvalue) / 2)
    assert eigenvalues(W).min() == pytest.approx(min(eigenvalue, 1), abs=1e-12)
    assert accepted(W) == (eigenvalue > -1 / 3)
    rate = growth(W)
    assert accepted(W) == (rate < 1)
    roots = np.roots([1, -2 * eigenvalue, eigenvalue])
    assert rate == pytest.approx(np.abs(roots).max(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "shares"),
    [
        *itertools.product([3, 5, 8], [(0.9, 0.1), (0.5, 0.5), (0.3, 0.7)]),
        (6, (0.4, 0.3, 0.3)),
        (3, (0.4, 0.35, 0.25)),
        (4, (0.4, 0.3, 0.2, 0.1)),
        (4, (0.7, 0.2, 0.0, 0.1)),
        (5, (0.25, 0.25, 0.2, 0.15, 0.15)),
        (6, (0.6, 0.1, 0.1, 0.1, 0.1)),
    ],
)
def test_complex_eigenvalues_are_accepted_if_and_only_if_the_recursion_contracts(n, shares):
    W = circulant(n, *shares)
    rate = growth(W)
    assert abs(rate - 1) > 1e-3  # no case in doubt
    assert accepted(W) == (rate < 1)


def test_complex_eigenvalues_give_both_verdicts():
    assert accepted(circulant(4, 0.7, 0.2, 0.0, 0.1))
    assert not accepted(circulant(8, 0.5, 0.5))  # lazy is not enough without symmetry


@pytest.mark.parametrize(("graph", "smallest"), [(ring(16), -1 / 3), (torus(4, 4), -0.6), (social_network(), -0.43)])
def test_metropolis_hastings_is_refused_on_the_graphs_of_the_paper(graph, smallest):
    W = metropolis_hastings(graph)
    assert eigenvalues(W).min() == pytest.approx(smallest, abs=5e-3)
    with pytest.raises(MixingError, match=r"eigenvalue -0\.\d+.*unit disc.*lazy\(symmetrized\(W\)\)"):
        check_d2_stability(W)
    check_d2_stability(lazy(symmetrized(W)))


@pytest.mark.parametrize("graph", [complete(5), chain(2), ring(3), Graph(3, [])])
def test_full_averaging_and_no_mixing_at_all_are_stable(graph):
    W = uniform(graph)
    check_d2_stability(W)
    if graph.is_connected:
        assert growth(W) < 1e-6


def test_an_unstable_matrix_is_refused_in_a_run_before_it_mixes():
    task = random_quadratics(16, dim=3)
    with pytest.raises(MixingError, match="D² is not stable"):
        make_training(task, metropolis_hastings(ring(16)), D2(), 0.01)
    stable = make_training(task, lazy(metropolis_hastings(ring(16))), D2(), 0.01)
    stable.step()


def test_an_unstable_matrix_that_comes_later_is_refused_too():
    class Later(Policy):
        """A stable matrix, then an unstable one."""

        def plan(self, round, state, network):
            W = metropolis_hastings(network.graph)
            return Plan((lazy(W) if round.t < 2 else W,))

    graph = ring(16)
    optimizer = lambda rows: torch.optim.SGD(rows, lr=0.01)  # noqa: E731
    training = Training(random_quadratics(16, dim=3), SimulatedNetwork(graph), Later(), D2(), optimizer)
    training.step()
    training.step()
    with pytest.raises(MixingError, match="D² is not stable"):
        training.step()


@pytest.mark.parametrize("several", [lambda *parts: Product(parts), Decoupled])
def test_plans_of_several_matrices_are_refused(several):
    graph = ring(4)
    W = lazy(metropolis_hastings(graph))
    optimizer = lambda rows: torch.optim.SGD(rows, lr=0.01)  # noqa: E731
    policy = several(Fixed(W), Fixed(W))
    with pytest.raises((MixingError, TrainingError), match=r"one matrix per mixing|do not fit together"):
        Training(random_quadratics(4, dim=3), SimulatedNetwork(graph), policy, D2(), optimizer).step()
