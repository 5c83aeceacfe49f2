"""Algorithms against the paper's equations in the paper's own orientation: nodes are columns, a gossip step is X W.

Float64, 50 steps. Both sides do the same sums in another order, so they agree to 1e-12 on iterates of size 1.
"""

import numpy as np
import pytest
import torch

import builders
from builders import cases, refused
from mixwise.algorithms import DSGD, DecoupledDSGD
from mixwise.errors import MixingError, TrainingError
from mixwise.graphs import Graph, complete, random_connected, ring, torus
from mixwise.mixing import MixingMatrix, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Alternating, Decoupled, HeterogeneityAware, Product, RandomChoice
from mixwise.seeding import stream
from mixwise.sketch import ExactSketch
from mixwise.tasks import QuadraticTask, random_quadratics
from mixwise.training import Training
from planning import Planner, mixed

N, D, ETA, STEPS = 8, 12, 0.004, 50
CLOSE = {"rtol": 0, "atol": 1e-12}


def asymmetric(seed: int) -> MixingMatrix:
    return builders.asymmetric(N, seed, complete(N))


def task(noise: float = 0.1) -> QuadraticTask:
    return random_quadratics(N, dim=D, noise=noise, seed=3)


def sgd(blocks, **options):
    return torch.optim.SGD(blocks, lr=ETA, **options)


def ours(policy, algorithm=None, graph: Graph | None = None, optimizer=sgd) -> np.ndarray:
    """X⁽⁵⁰⁾ of the library, rows are nodes."""
    training = Training(task(), SimulatedNetwork(graph or complete(N)), policy, algorithm or DSGD(), optimizer)
    for _ in range(STEPS):
        training.step()
    return training.X.numpy()


# --- the paper's side: X, G ∈ R^{d×n} ---
def start() -> np.ndarray:
    return task().initial(range(N)).numpy().T


def stochastic_gradients(X: np.ndarray, t: int) -> np.ndarray:
    """∂F(X⁽ᵗ⁾, ξ⁽ᵗ⁾): column i is ∇F_i(x_i, ξ_i)."""
    return task().losses_and_gradients(torch.from_numpy(X.T.copy()), range(N), t)[1].numpy().T


def gme_opt(G: np.ndarray, graph: Graph) -> np.ndarray:
    """Γ = (G − Ḡ)ᵀ(G − Ḡ) with columns as nodes, and the W that minimizes Tr(WᵀΓW)."""
    centered = G - G @ np.full((N, N), 1 / N)
    return minimize_gme(centered.T @ centered, graph).W.to_dense()


def paper_dsgd(weights, momentum=0.0) -> np.ndarray:
    """Algorithm 1: X⁽ᵗ⁺¹⁾ = (X⁽ᵗ⁾ − U⁽ᵗ⁾) W⁽ᵗ⁾, W⁽ᵗ⁾ = weights(t, U⁽ᵗ⁾, X⁽ᵗ⁾ − U⁽ᵗ⁾).

    U = η M with the momentum M⁽ᵗ⁾ = β M⁽ᵗ⁻¹⁾ + G⁽ᵗ⁾, which stays where it is.
    """
    X, M = start(), 0.0
    for t in range(STEPS):
        M = momentum * M + stochastic_gradients(X, t)
        U = ETA * M
        X = (X - U) @ weights(t, U, X - U)
    return X


def optimized(graph: Graph, period: int, between: np.ndarray | None = None, parameters: bool = False):
    """W⁽ᵗ⁾ = GME-opt(U⁽ᵗ⁾) every H steps, else W⁽ᵗ⁻¹⁾; of the parameters instead; with other weights at odd steps."""
    known = {}

    def weights(t, U, stepped):
        if t % period == 0:
            known["W"] = gme_opt(stepped if parameters else U, graph)
        return known["W"] if between is None or t % 2 == 0 else between

    return weights


# --- D-SGD ---
A, B, ONE_WAY = asymmetric(4), asymmetric(5), Graph(N, [(i, (i + 1) % N) for i in range(N)], directed=True)
HALVES = (np.eye(N) + np.roll(np.eye(N), 1, axis=1)) / 2
DRAWN = RandomChoice([asymmetric(1), asymmetric(2), asymmetric(3)], [0.2, 0.3, 0.5])
DRAWS = Planner(DRAWN, SimulatedNetwork(complete(N)), seed=stream(0, "policy"))


@cases(
    "policy, graph, W, wrong",
    (A, complete(N), lambda t: A.to_dense(), A.to_dense().T),
    (DRAWN, complete(N), lambda t: DRAWS.plan(t).params[0].to_dense(), None),
    (Product([A, B]), complete(N), lambda t: A.to_dense() @ B.to_dense(), B.to_dense() @ A.to_dense()),
    (uniform(ONE_WAY), ONE_WAY, lambda t: HALVES, HALVES.T),
    ids=["fixed", "drawn", "product", "directed"],
)
def test_dsgd_is_algorithm_1(policy, graph, W, wrong):
    """A product is applied first factor first, in two rounds (Example 3). The other orientation or order is another."""
    X = paper_dsgd(lambda t, *_: W(t))
    np.testing.assert_allclose(ours(policy, graph=graph), X.T, **CLOSE)
    assert wrong is None or np.abs(paper_dsgd(lambda *_: wrong) - X).max() > 1e-2


# --- HA-DSGD ---
def aware(period, **options):
    return HeterogeneityAware(period, sketch=ExactSketch(), **options)


@pytest.mark.parametrize("graph", [ring(N), random_connected(N, seed=1), torus(2, 4)])
def test_ha_dsgd_is_algorithm_2(graph):
    """Every H = 3 steps; also for the parameters that are mixed (Section 5.4)."""
    np.testing.assert_allclose(ours(aware(3), graph=graph), paper_dsgd(optimized(graph, 3)).T, **CLOSE)
    X = paper_dsgd(optimized(graph, 3, parameters=True))
    np.testing.assert_allclose(ours(aware(3, objective="parameters"), graph=graph), X.T, **CLOSE)


@pytest.mark.parametrize("period", [1, 4])
def test_ha_dsgd_as_in_the_experiments(period):
    """GME weights and Metropolis-Hastings weights in turn."""
    graph = torus(2, 4)
    local = metropolis_hastings(graph)
    X = paper_dsgd(optimized(graph, max(2, period), local.to_dense()))
    np.testing.assert_allclose(ours(aware(period, alternate_with=local), graph=graph), X.T, **CLOSE)
    if period == 1:  # the same, put together by hand
        np.testing.assert_allclose(ours(Alternating([aware(1), local]), graph=graph), X.T, **CLOSE)


def test_ha_dsgd_optimizes_for_the_update_of_the_optimizer():
    """Section 5.4: with momentum, the momentum update takes the place of G."""
    X = paper_dsgd(optimized(ring(N), 3), momentum=0.9)
    found = ours(aware(3), graph=ring(N), optimizer=lambda b: sgd(b, momentum=0.9))
    np.testing.assert_allclose(found, X.T, rtol=0, atol=1e-11)


# --- decoupled ---
def test_decoupled_is_algorithm_4():
    """X⁽ᵗ⁺¹⁾ = X⁽ᵗ⁾ W_p − η G⁽ᵗ⁾ W_g."""
    X = start()
    for t in range(STEPS):
        X = X @ A.to_dense() - ETA * stochastic_gradients(X, t) @ B.to_dense()
    np.testing.assert_allclose(ours(Decoupled(params=A, updates=B), DecoupledDSGD()), X.T, **CLOSE)


# --- what they refuse ---
def test_channels_have_to_fit_the_algorithm():
    X, network = torch.zeros(N, 2), SimulatedNetwork(complete(N))
    rule = "D-SGD mixes one thing; a policy with a second channel"
    refused(MixingError, rule, mixed, DSGD(), X, X, Plan((A,), updates=(A,)), network)
    rule = r"needs a policy with two channels: Decoupled\(params=…, updates=…\)"
    refused(TrainingError, rule, mixed, DecoupledDSGD(), X, X, Plan((A,)), network)
