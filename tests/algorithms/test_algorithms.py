"""Algorithms against the paper's equations in the paper's own orientation: nodes are columns, a gossip step is X W.

Float64, 50 steps. Both sides do the same sums in another order, so they agree to 1e-12 on iterates of size 1.
"""

import numpy as np
import pytest
import torch

import builders
from mixwise.algorithms import DSGD, DecoupledDSGD
from mixwise.errors import MixingError, TrainingError
from mixwise.graphs import Graph, complete, random_connected, ring, torus
from mixwise.mixing import MixingMatrix, metropolis_hastings, minimize_gme, uniform
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Alternating, Decoupled, Fixed, HeterogeneityAware, Product, RandomChoice
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


def paper_dsgd(weights) -> np.ndarray:
    """Algorithm 1: X⁽ᵗ⁺¹⁾ = (X⁽ᵗ⁾ − η G⁽ᵗ⁾) W⁽ᵗ⁾."""
    X = start()
    for t in range(STEPS):
        X = (X - ETA * stochastic_gradients(X, t)) @ weights(t)
    return X


# --- D-SGD ---
def test_dsgd_is_algorithm_1():
    W = asymmetric(0)
    X = paper_dsgd(lambda t: W.to_dense())
    np.testing.assert_allclose(ours(Fixed(W)), X.T, **CLOSE)
    # Had the orientation been the other one, the iterates would be others.
    assert np.abs(paper_dsgd(lambda t: W.to_dense().T) - X).max() > 1e-2


def test_dsgd_with_weights_drawn_from_a_distribution():
    matrices = [asymmetric(1), asymmetric(2), asymmetric(3)]
    policy = RandomChoice(matrices, [0.2, 0.3, 0.5])
    planner = Planner(policy, SimulatedNetwork(complete(N)), seed=stream(0, "policy"))
    drawn = [planner.plan(t).params[0].to_dense() for t in range(STEPS)]
    np.testing.assert_allclose(ours(policy), paper_dsgd(lambda t: drawn[t]).T, **CLOSE)


def test_dsgd_with_a_product_applies_the_first_factor_first():
    """X W_ζ′ W_p, in two rounds (paper, Example 3)."""
    A, B = asymmetric(4), asymmetric(5)
    X = paper_dsgd(lambda t: A.to_dense() @ B.to_dense())
    np.testing.assert_allclose(ours(Product([Fixed(A), Fixed(B)])), X.T, **CLOSE)
    assert np.abs(paper_dsgd(lambda t: B.to_dense() @ A.to_dense()) - X).max() > 1e-2


def test_dsgd_on_a_directed_graph():
    one_way = Graph(N, [(i, (i + 1) % N) for i in range(N)], directed=True)
    X = paper_dsgd(lambda t: (np.eye(N) + np.roll(np.eye(N), 1, axis=1)) / 2)
    np.testing.assert_allclose(ours(Fixed(uniform(one_way)), graph=one_way), X.T, **CLOSE)


@pytest.mark.parametrize("nesterov", [False, True])
def test_dsgd_with_momentum_mixes_the_stepped_parameters(nesterov):
    """M⁽ᵗ⁾ = β M⁽ᵗ⁻¹⁾ + G⁽ᵗ⁾, U = η M or η (G + β M); X⁽ᵗ⁺¹⁾ = (X⁽ᵗ⁾ − U) W. The momentum stays where it is."""
    W, X, M = asymmetric(6).to_dense(), start(), 0.0
    for t in range(STEPS):
        G = stochastic_gradients(X, t)
        M = 0.9 * M + G
        X = (X - ETA * (G + 0.9 * M if nesterov else M)) @ W
    found = ours(Fixed(asymmetric(6)), optimizer=lambda b: sgd(b, momentum=0.9, nesterov=nesterov))
    np.testing.assert_allclose(found, X.T, rtol=0, atol=1e-11)  # momentum: steps ten times as large


# --- HA-DSGD ---
@pytest.mark.parametrize("graph", [ring(N), random_connected(N, seed=1), torus(2, 4)])
def test_ha_dsgd_is_algorithm_2(graph):
    """W⁽ᵗ⁾ = GME-opt(G⁽ᵗ⁾) every H = 3 steps, else W⁽ᵗ⁻¹⁾; the sketch is exact."""
    X = start()
    for t in range(STEPS):
        G = stochastic_gradients(X, t)
        if t % 3 == 0:
            W = gme_opt(G, graph)
        X = (X - ETA * G) @ W
    found = ours(HeterogeneityAware(3, sketch=ExactSketch()), graph=graph)
    np.testing.assert_allclose(found, X.T, **CLOSE)


@pytest.mark.parametrize("period", [1, 4])
def test_ha_dsgd_as_in_the_experiments(period):
    """GME weights and Metropolis-Hastings weights in turn."""
    graph = torus(2, 4)
    local, X = metropolis_hastings(graph), start()
    for t in range(STEPS):
        G = stochastic_gradients(X, t)
        if t % max(2, period) == 0:
            W = gme_opt(G, graph)
        X = (X - ETA * G) @ (W if t % 2 == 0 else local.to_dense())
    policy = HeterogeneityAware(period, sketch=ExactSketch(), alternate_with=local)
    np.testing.assert_allclose(ours(policy, graph=graph), X.T, **CLOSE)
    if period == 1:  # the same, put together by hand
        by_hand = Alternating([HeterogeneityAware(sketch=ExactSketch()), Fixed(local)])
        np.testing.assert_allclose(ours(by_hand, graph=graph), X.T, **CLOSE)


def test_ha_dsgd_optimizes_for_the_update_of_the_optimizer():
    """Section 5.4: with momentum, the momentum update takes the place of G."""
    graph, X, M = ring(N), start(), 0.0
    for t in range(STEPS):
        M = 0.9 * M + stochastic_gradients(X, t)
        if t % 3 == 0:
            W = gme_opt(M, graph)
        X = (X - ETA * M) @ W
    policy = HeterogeneityAware(3, sketch=ExactSketch())
    found = ours(policy, graph=graph, optimizer=lambda b: sgd(b, momentum=0.9))
    np.testing.assert_allclose(found, X.T, rtol=0, atol=1e-11)


def test_ha_dsgd_for_the_parameters():
    """Section 5.4: minimize ‖(X − X̄) W‖² of the parameters that are mixed."""
    graph, X = ring(N), start()
    for t in range(STEPS):
        stepped = X - ETA * stochastic_gradients(X, t)
        if t % 3 == 0:
            W = gme_opt(stepped, graph)
        X = stepped @ W
    policy = HeterogeneityAware(3, sketch=ExactSketch(), objective="parameters")
    np.testing.assert_allclose(ours(policy, graph=graph), X.T, **CLOSE)


# --- decoupled ---
def test_decoupled_is_algorithm_4():
    """X⁽ᵗ⁺¹⁾ = X⁽ᵗ⁾ W_p − η G⁽ᵗ⁾ W_g."""
    W_p, W_g, X = asymmetric(7), asymmetric(8), start()
    for t in range(STEPS):
        X = X @ W_p.to_dense() - ETA * stochastic_gradients(X, t) @ W_g.to_dense()
    policy = Decoupled(params=Fixed(W_p), updates=Fixed(W_g))
    np.testing.assert_allclose(ours(policy, DecoupledDSGD()), X.T, **CLOSE)


# --- the notation, pinned ---
def test_w_ij_is_the_weight_that_node_j_gives_to_what_arrives_from_node_i():
    """docs/notation.md: only node 0 has something, and node 1 alone hears it."""
    W = MixingMatrix.from_dense([[0.7, 0.3, 0.0], [0.0, 0.7, 0.3], [0.3, 0.0, 0.7]])
    assert W[0, 1] == 0.3
    X = torch.tensor([[10.0], [0.0], [0.0]], dtype=torch.float64)
    network = SimulatedNetwork(W.graph)
    X_plus = mixed(DSGD(), X, X, Plan((W,)), network)
    torch.testing.assert_close(X_plus, torch.tensor([[7.0], [3.0], [0.0]], dtype=torch.float64))
    zero = torch.zeros_like(X)
    decoupled = mixed(DecoupledDSGD(), zero, -X, Plan((W,), updates=(W,)), network)  # U = 0 − (−X) = X
    torch.testing.assert_close(decoupled, -X_plus)


# --- what they refuse, and what they cost ---
def test_channels_have_to_fit_the_algorithm():
    W, X, network = asymmetric(0), torch.zeros(N, 2), SimulatedNetwork(complete(N))
    with pytest.raises(MixingError, match="D-SGD mixes one thing; a policy with a second channel"):
        mixed(DSGD(), X, X, Plan((W,), updates=(W,)), network)
    with pytest.raises(TrainingError, match=r"needs a policy with two channels: Decoupled\(params=…, updates=…\)"):
        mixed(DecoupledDSGD(), X, X, Plan((W,)), network)
