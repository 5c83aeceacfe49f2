"""Iterates of the algorithms against the equations of their papers, written out here in NumPy, nodes as rows.

Every reference below knows W, the stochastic gradients and the step sizes η_t, and nothing of `mixwise.algorithms`.
P is Wᵀ, so that a gossip step is P X. Float64, 50 steps: both sides do the same sums in another order, on iterates of
size 1 to 10, and agree to 1e-11.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch

from mixwise.algorithms import (
    D2,
    DSGD,
    EXTRA,
    AllReduceSGD,
    Choco,
    CombineThenAdapt,
    CombineWhileAdapt,
    DAdam,
    DecentLaM,
    GradientTracking,
    LocalSGD,
    PushSum,
    QuasiGlobalAdam,
    QuasiGlobalMomentum,
    RelaySGD,
    TopK,
)
from mixwise.graphs import Graph, complete, random_connected
from mixwise.mixing import MixingMatrix
from mixwise.needs import Provides
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Fixed, NoMixing, Policy, RandomChoice, Tree
from mixwise.seeding import stream
from mixwise.tasks import random_quadratics
from mixwise.training import Training
from planning import Planner

pytestmark = pytest.mark.numerics

N, D, STEPS = 8, 6, 50
LR = 0.005
CLOSE = {"rtol": 0, "atol": 1e-11}
I = np.eye(N)  # noqa: E741 - the identity


# --- what both sides share: the data, the graph, the weights, the step sizes ---
def constant(t):
    return 1.0


def moving(t):
    """Up, down, and jumps: whatever a schedule may do, except 0."""
    return (0.2 + 0.04 * t if t < 20 else 1.0 if t < 30 else 0.3) * (1.5 if t % 7 == 3 else 1.0)


@lru_cache
def task(seed=0):
    return random_quadratics(N, dim=D, noise=0.3, seed=seed)


def gradients(X, t, seed=0):
    """Row i: the stochastic gradient of node i at its own row, from the task's own stream of noise."""
    return task(seed).losses_and_gradients(torch.from_numpy(np.array(X)), range(N), t)[1].numpy()


def start(seed=0):
    return task(seed).initial(range(N)).numpy()


@lru_cache
def sinkhorn(graph, seed):
    """Random positive weights on the arcs and loops of a graph, scaled until rows and columns sum to 1: asymmetric."""
    rng = np.random.default_rng(seed)
    W = np.zeros((graph.n, graph.n))
    W[graph.pattern.rows, graph.pattern.cols] = rng.uniform(0.05, 1, len(graph.pattern.rows))
    for _ in range(500):
        W /= W.sum(1, keepdims=True)
        W /= W.sum(0, keepdims=True)
    assert np.abs(W.sum(1) - 1).max() < 1e-13
    return W


def asymmetric(seed=0):
    """Doubly stochastic on a random connected graph, and not symmetric."""
    graph = random_connected(N, seed=seed)
    W = sinkhorn(graph, seed)
    assert np.abs(W - W.T).max() > 0.1
    return MixingMatrix.from_dense(W, graph)


def stable(seed=0):
    """Positive eigenvalues but for a little asymmetry, which tells W from Wᵀ: D² and EXTRA accept it."""
    graph = random_connected(N, seed=seed)
    W = sinkhorn(graph, seed)
    W = 0.5 * I + 0.4 * (W + W.T) / 2 + 0.1 * W
    assert np.abs(W - W.T).max() > 0.01
    return MixingMatrix.from_dense(W, graph)


def run(algorithm, policy, graph, schedule=constant, seed=0, optimizer=torch.optim.SGD, **options):
    """The models after every step, (steps, n, d), and the training."""
    training = Training(
        task(seed),
        SimulatedNetwork(graph),
        policy,
        algorithm,
        lambda blocks: optimizer(blocks, lr=LR, **options),
        scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, schedule),
    )
    models = []
    for _ in range(STEPS):
        training.step()
        models.append(training.models.numpy().copy())
    return np.stack(models), training


def compare(found, expected, seed=0):
    """The same at every step; and it is a test only if the rows have moved and differ from each other."""
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert np.abs(found[-1] - start(seed)).max() > 0.1


schedules = pytest.mark.parametrize("schedule", [constant, moving])
seeds = pytest.mark.parametrize("seed", [0, 1])


# --- D-SGD and its orders of mixing and stepping ---
@schedules
@seeds
def test_dsgd(schedule, seed):
    """X ← P (X − η G) (Lian et al. 2017; adapt, then combine)."""
    W = asymmetric(seed)
    P, X, expected = W.to_dense().T, start(seed), []
    for t in range(STEPS):
        X = P @ (X - LR * schedule(t) * gradients(X, t, seed))
        expected.append(X)
    compare(run(DSGD(), Fixed(W), W.graph, schedule, seed)[0], expected, seed)


@schedules
@seeds
def test_combine_then_adapt(schedule, seed):
    """ψ = P X;  X ← ψ − η ∇F(ψ) (Cattivelli and Sayed 2010): the gradient is that of the mixed point."""
    W = asymmetric(seed)
    P, X, expected = W.to_dense().T, start(seed), []
    for t in range(STEPS):
        psi = P @ X
        X = psi - LR * schedule(t) * gradients(psi, t, seed)
        expected.append(X)
    compare(run(CombineThenAdapt(), Fixed(W), W.graph, schedule, seed)[0], expected, seed)


@schedules
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_combine_while_adapt(schedule, momentum):
    """X ← P X − η M, M = β M + G (D-PSGD as printed; the gradient is that of the point before mixing)."""
    W = asymmetric()
    P, X, M, expected = W.to_dense().T, start(), 0.0, []
    for t in range(STEPS):
        M = momentum * M + gradients(X, t)
        X = P @ X - LR * schedule(t) * M
        expected.append(X)
    compare(run(CombineWhileAdapt(), Fixed(W), W.graph, schedule, momentum=momentum)[0], expected)


def test_combine_while_adapt_with_weights_that_change():
    """X⁽ᵗ⁺¹⁾ = P⁽ᵗ⁻¹⁾ X⁽ᵗ⁾ − η G⁽ᵗ⁾, P⁽⁻¹⁾ = I: the weights are those that were known before the gradient was."""
    matrices = [asymmetric(0), asymmetric(1)]
    policy = RandomChoice(matrices)
    planner = Planner(policy, SimulatedNetwork(matrices[0].graph), seed=stream(0, "policy"))
    X, P, expected = start(), I, []
    for t in range(STEPS):
        X = P @ X - LR * gradients(X, t)
        P = planner.plan(t).params[0].to_dense().T
        expected.append(X)
    compare(run(CombineWhileAdapt(), policy, matrices[0].graph)[0], expected)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.5, 0.9)])
def test_dadam(beta1, beta2):
    """Adam with its bias correction on every node, then gossip on the parameters alone."""
    W, rate, eps = asymmetric(), 0.05, 1e-8
    P, X, m, v, expected = W.to_dense().T, start(), 0.0, 0.0, []
    for t in range(STEPS):
        G = gradients(X, t)
        m, v = beta1 * m + (1 - beta1) * G, beta2 * v + (1 - beta2) * G**2
        step = m / (1 - beta1 ** (t + 1)) / (np.sqrt(v / (1 - beta2 ** (t + 1))) + eps)
        X = P @ (X - rate * moving(t) * step)
        expected.append(X)
    scaled = lambda t: moving(t) * rate / LR  # noqa: E731
    options = {"betas": (beta1, beta2), "eps": eps}
    compare(run(DAdam(), Fixed(W), W.graph, scaled, optimizer=torch.optim.Adam, **options)[0], expected)


# --- exact methods ---
@schedules
@seeds
def test_d2(schedule, seed):
    """X⁽ᵗ⁺¹⁾ = P (2 X⁽ᵗ⁾ − X⁽ᵗ⁻¹⁾ − η_t G⁽ᵗ⁾ + η_{t−1} G⁽ᵗ⁻¹⁾), X⁽¹⁾ = P (X⁽⁰⁾ − η G⁽⁰⁾) (Tang et al. 2018).

    Each gradient keeps the step size of its own time, or else the sum would not telescope.
    """
    W = stable(seed)
    P, X, expected = W.to_dense().T, start(seed), []
    X_prev = step_prev = None
    for t in range(STEPS):
        step = LR * schedule(t) * gradients(X, t, seed)
        half = X - step if t == 0 else 2 * X - X_prev - step + step_prev
        X_prev, step_prev, X = X, step, P @ half
        expected.append(X)
    compare(run(D2(), Fixed(W), W.graph, schedule, seed)[0], expected, seed)


@seeds
def test_extra_in_its_two_step_form(seed):
    """X⁽ᵏ⁺²⁾ = (I + P) X⁽ᵏ⁺¹⁾ − (I + P)/2 X⁽ᵏ⁾ − α (G⁽ᵏ⁺¹⁾ − G⁽ᵏ⁾), X⁽¹⁾ = P X⁽⁰⁾ − α G⁽⁰⁾ (Shi et al. 2015)."""
    W = stable(seed)
    P, X_prev = W.to_dense().T, start(seed)
    G_prev = gradients(X_prev, 0, seed)
    X = P @ X_prev - LR * G_prev
    expected = [X]
    for t in range(1, STEPS):
        G = gradients(X, t, seed)
        X, X_prev, G_prev = (I + P) @ X - (I + P) / 2 @ X_prev - LR * (G - G_prev), X, G
        expected.append(X)
    compare(run(EXTRA(), Fixed(W), W.graph, constant, seed)[0], expected, seed)


@schedules
def test_extra_with_step_sizes_that_change_and_momentum(schedule):
    """As a primal-dual method: X ← P X − α_t (M − Y), Y = Σ_s (P − I) X⁽ˢ⁾ / (2 α_s), M = β M + G.

    At the optimum Y = ∇f / (1 − β), whatever the step size is; with α constant it is the sum form of the paper.
    """
    W, beta = stable(), 0.5
    P, X, M, Y, expected = W.to_dense().T, start(), 0.0, 0.0, []
    for t in range(STEPS):
        alpha = LR * schedule(t)
        M = beta * M + gradients(X, t)
        X, Y = P @ X - alpha * (M - Y), Y + (P @ X - X) / (2 * alpha)
        expected.append(X)
    compare(run(EXTRA(), Fixed(W), W.graph, schedule, momentum=beta)[0], expected)


@schedules
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@seeds
def test_gradient_tracking(schedule, momentum, seed):
    """Y⁽⁰⁾ = G⁽⁰⁾;  X⁽ᵗ⁺¹⁾ = P (X⁽ᵗ⁾ − η_t M⁽ᵗ⁾), M = β M + Y;  Y⁽ᵗ⁺¹⁾ = P Y⁽ᵗ⁾ + G⁽ᵗ⁺¹⁾ − G⁽ᵗ⁾."""
    W = asymmetric(seed)
    P, X, M, expected, mean_errors = W.to_dense().T, start(seed), 0.0, [], []
    Y = G_prev = None
    for t in range(STEPS):
        G = gradients(X, t, seed)
        Y = G if t == 0 else P @ Y + G - G_prev
        mean_errors.append(np.abs(Y.mean(0) - G.mean(0)).max())
        M, G_prev = momentum * M + Y, G
        X = P @ (X - LR * schedule(t) * M)
        expected.append(X)
    assert max(mean_errors) < 1e-11  # the invariant for which the method has its name
    compare(run(GradientTracking(), Fixed(W), W.graph, schedule, seed, momentum=momentum)[0], expected, seed)


# --- momentum for heterogeneous data ---
@schedules
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mu", [None, 0.7])
def test_quasi_global_momentum(schedule, nesterov, mu):
    """m = β m̂ + g;  x½ = x − η m, or x − η (β m + g);  x⁺ = P x½;  m̂⁺ = μ m̂ + (1 − μ)(x − x⁺)/η (Lin et al. 2021)."""
    W, beta = asymmetric(), 0.9
    follow = beta if mu is None else mu
    P, X, m_hat, expected = W.to_dense().T, start(), np.zeros((N, D)), []
    for t in range(STEPS):
        eta, G = LR * schedule(t), gradients(X, t)
        m = beta * m_hat + G
        half = X - eta * (beta * m + G if nesterov else m)
        X_new = P @ half
        m_hat = follow * m_hat + (1 - follow) * (X - X_new) / eta
        X = X_new
        expected.append(X)
    algorithm = QuasiGlobalMomentum(beta, mu=mu, nesterov=nesterov)
    compare(run(algorithm, Fixed(W), W.graph, schedule)[0], expected)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.95)])
def test_quasi_global_adam(betas):
    """Lin et al. 2021, Algorithm of QG-DAdam, node by node; both moments learn from d / ‖d‖ of the node's movement."""
    W, (beta1, beta2), eps, rate = asymmetric(), betas, 1e-3, 0.02
    P, X, expected = W.to_dense().T, start(), []
    m_hat, v_hat = np.zeros((N, D)), np.zeros((N, D))
    for t in range(STEPS):
        eta, G = rate * moving(t), gradients(X, t)
        half = np.empty((N, D))
        for i in range(N):
            m = beta1 * m_hat[i] + (1 - beta1) * G[i]
            v = beta2 * v_hat[i] + (1 - beta2) * G[i] * G[i]
            half[i] = X[i] - eta * m / (np.sqrt(v) + eps)
        X_new = P @ half
        for i in range(N):
            d = (X[i] - X_new[i]) / np.sqrt(np.sum((X[i] - X_new[i]) ** 2))
            m_hat[i] = beta1 * m_hat[i] + (1 - beta1) * d
            v_hat[i] = beta2 * v_hat[i] + (1 - beta2) * d * d
        X = X_new
        expected.append(X)
    scaled = lambda t: moving(t) * rate / LR  # noqa: E731
    compare(run(QuasiGlobalAdam(betas, eps), Fixed(W), W.graph, scaled)[0], expected)


@schedules
@seeds
def test_decentlam(schedule, seed):
    """g̃ = x/γ − P (x − γ g)/γ;  m = β m + g̃;  x ← x − γ m (Yuan et al. 2021, Algorithm 2)."""
    W, beta = asymmetric(seed), 0.8
    P, X, m, expected = W.to_dense().T, start(seed), 0.0, []
    for t in range(STEPS):
        gamma, G = LR * schedule(t), gradients(X, t, seed)
        m = beta * m + X / gamma - P @ (X - gamma * G) / gamma
        X = X - gamma * m
        expected.append(X)
    compare(run(DecentLaM(beta), Fixed(W), W.graph, schedule, seed)[0], expected, seed)


# --- sums along a tree ---
def random_tree(seed):
    """Each node hangs on one before it; then all are renamed."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(N)
    return Graph(N, [(int(names[rng.integers(0, j)]), int(names[j])) for j in range(1, N)])


class Relay:
    """Vogels et al. 2021, Algorithm 1: one message and one count per directed edge, in dictionaries."""

    def __init__(self, tree):
        self.near = {i: tree.neighbors(i) for i in range(N)}
        self.arcs = [(i, j) for i in self.near for j in self.near[i]]
        self.message, self.count = dict.fromkeys(self.arcs, np.zeros(D)), dict.fromkeys(self.arcs, 0)

    def __call__(self, half):
        """The mean of the rows that have reached each node, and how many they are."""
        near, message, count = self.near, self.message, self.count
        self.message = {(i, j): half[i] + sum(message[k, i] for k in near[i] if k != j) for i, j in self.arcs}
        self.count = {(i, j): 1 + sum(count[k, i] for k in near[i] if k != j) for i, j in self.arcs}
        heard = np.array([1 + sum(self.count[j, i] for j in near[i]) for i in near])
        return np.stack([half[i] + sum(self.message[j, i] for j in near[i]) for i in near]) / heard[:, None], heard


@schedules
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_relay(schedule, momentum, seed):
    tree = random_tree(seed)
    relay, X, M, expected, reached = Relay(tree), start(seed), 0.0, [], []
    for t in range(STEPS):
        M = momentum * M + gradients(X, t, seed)
        X, heard = relay(X - LR * schedule(t) * M)
        expected.append(X)
        reached.append(heard.min() == N)
    assert reached == [t >= tree.diameter - 1 for t in range(STEPS)]
    compare(run(RelaySGD(), Tree(tree), tree, schedule, seed, momentum=momentum)[0], expected, seed)


@dataclass(frozen=True)
class Switching(Policy):
    """Another tree from mixing 20 on."""

    before: Graph
    after: Graph

    provides = Provides("a tree")

    def plan(self, round, state, network):
        return Plan((), tree=self.before if round.t < 20 else self.after)


def test_relay_starts_over_on_another_tree():
    """All messages and counts are 0 again when the tree changes."""
    trees = random_tree(5), random_tree(6)
    relay, X, expected = Relay(trees[0]), start(), []
    for t in range(STEPS):
        if t == 20:
            relay = Relay(trees[1])
        X, _ = relay(X - LR * gradients(X, t))
        expected.append(X)
    compare(run(RelaySGD(), Switching(*trees), complete(N))[0], expected)


def test_quasi_global_momentum_around_relay():
    """The movement after relaying takes the place of the movement after mixing."""
    tree, beta, mu = random_tree(4), 0.9, 0.8
    relay, X, m_hat, expected = Relay(tree), start(), np.zeros((N, D)), []
    for t in range(STEPS):
        eta = LR * moving(t)
        X_new, _ = relay(X - eta * (beta * m_hat + gradients(X, t)))
        m_hat = mu * m_hat + (1 - mu) * (X - X_new) / eta
        X = X_new
        expected.append(X)
    algorithm = QuasiGlobalMomentum(beta, mu=mu, nesterov=False, inner=RelaySGD())
    compare(run(algorithm, Tree(tree), tree, moving)[0], expected)


def test_quasi_global_momentum_around_combine_while_adapt():
    """x⁺ = P x − η (β m̂ + g): the same momentum around another order of mixing and stepping."""
    W, beta = asymmetric(), 0.9
    P, X, m_hat, expected = W.to_dense().T, start(), 0.0, []
    for t in range(STEPS):
        eta = LR * moving(t)
        X_new = P @ X - eta * (beta * m_hat + gradients(X, t))
        m_hat = beta * m_hat + (1 - beta) * (X - X_new) / eta
        X = X_new
        expected.append(X)
    algorithm = QuasiGlobalMomentum(beta, nesterov=False, inner=CombineWhileAdapt())
    compare(run(algorithm, Fixed(W), W.graph, moving)[0], expected)


def test_quasi_global_momentum_around_gradient_tracking():
    """The tracked gradient y takes the place of g: m = β m̂ + y."""
    W, beta = asymmetric(1), 0.7
    P, X, m_hat, expected = W.to_dense().T, start(), 0.0, []
    Y = G_prev = None
    for t in range(STEPS):
        eta, G = LR * moving(t), gradients(X, t)
        Y, G_prev = (G if t == 0 else P @ Y + G - G_prev), G
        X_new = P @ (X - eta * (beta * m_hat + Y))
        m_hat = beta * m_hat + (1 - beta) * (X - X_new) / eta
        X = X_new
        expected.append(X)
    algorithm = QuasiGlobalMomentum(beta, nesterov=False, inner=GradientTracking())
    compare(run(algorithm, Fixed(W), W.graph, moving)[0], expected)


# --- directed graphs ---
def one_way(seed):
    """A directed ring and random arcs, and random weights whose rows sum to 1: node i splits what it sends."""
    rng = np.random.default_rng(seed)
    arcs = [(i, (i + 1) % N) for i in range(N)] + [(i, j) for i in range(N) for j in range(N) if rng.random() < 0.2]
    graph = Graph(N, arcs, directed=True)
    W = np.zeros((N, N))
    W[graph.pattern.rows, graph.pattern.cols] = rng.uniform(0.1, 1, len(graph.pattern.rows))
    W /= W.sum(1, keepdims=True)
    assert np.abs(W.sum(0) - 1).max() > 0.2  # far from doubly stochastic
    return MixingMatrix.from_dense(W, graph, kind="sender")


@schedules
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@seeds
def test_push_sum(schedule, momentum, seed):
    """SGP (Assran et al. 2019, Algorithm 1): x½ = x − η M(z);  x⁺ = P x½;  w⁺ = P w;  z⁺ = x⁺ / w⁺."""
    W = one_way(seed)
    P, numerators, w, M, expected = W.to_dense().T, start(seed), np.ones(N), 0.0, []
    z = numerators / w[:, None]
    for t in range(STEPS):
        M = momentum * M + gradients(z, t, seed)
        numerators = P @ (numerators - LR * schedule(t) * M)
        w = P @ w
        z = numerators / w[:, None]
        expected.append(z)
    found, training = run(PushSum(), Fixed(W), W.graph, schedule, seed, momentum=momentum)
    compare(found, expected, seed)
    mass = training.driver.algorithm_state.rows["mass"].numpy()
    np.testing.assert_allclose(mass[:, 0], w, **CLOSE)
    np.testing.assert_allclose(mass * training.X.numpy(), numerators, **CLOSE)


def test_push_sum_with_weights_that_change():
    """P⁽ᵗ⁾ of time t moves numerators and weights alike."""
    matrices = [one_way(2), one_way(3)]
    policy = RandomChoice(matrices)
    planner = Planner(policy, SimulatedNetwork(matrices[0].graph), seed=stream(0, "policy"))
    numerators, w, expected = start(), np.ones(N), []
    for t in range(STEPS):
        P = planner.plan(t).params[0].to_dense().T
        numerators, w = P @ (numerators - LR * gradients(numerators / w[:, None], t)), P @ w
        expected.append(numerators / w[:, None])
    compare(run(PushSum(), policy, matrices[0].graph)[0], expected)


# --- compressed messages ---
def top(vector, k):
    """The k entries that are largest in modulus, the rest 0."""
    kept = np.zeros_like(vector)
    largest = sorted(range(len(vector)), key=lambda j: -abs(vector[j]))[:k]
    kept[largest] = vector[largest]
    return kept


@schedules
@pytest.mark.parametrize(("share", "k"), [(0.2, 1), (0.5, 3), (1.0, 6)])
@seeds
def test_choco(schedule, share, k, seed):
    """q_i = Q(x_i½ − x̂_i);  x̂_i ← x̂_i + q_i;  x_i⁺ = x_i½ + γ Σ_j w_ji (x̂_j − x̂_i) (Koloskova et al. 2019)."""
    W, gamma = asymmetric(seed), 0.3
    dense, X, public, expected = W.to_dense(), start(seed), np.zeros((N, D)), []
    for t in range(STEPS):
        half = X - LR * schedule(t) * gradients(X, t, seed)
        public = np.stack([public[i] + top(half[i] - public[i], k) for i in range(N)])
        X = np.stack([half[i] + gamma * sum(dense[j, i] * (public[j] - public[i]) for j in range(N)) for i in range(N)])
        expected.append(X)
    compare(run(Choco(TopK(share), gamma), Fixed(W), W.graph, schedule, seed)[0], expected, seed)


# --- averaging over all nodes ---
def test_all_reduce_is_one_model_with_the_mean_gradient():
    """x ← x − η M, M = β M + mean of the nodes' gradients at x."""
    x, M, expected = start()[0], 0.0, []
    for t in range(STEPS):
        M = 0.9 * M + gradients(np.tile(x, (N, 1)), t).mean(0)
        x = x - LR * moving(t) * M
        expected.append(np.tile(x, (N, 1)))
    graph = random_connected(N)
    compare(run(AllReduceSGD(), NoMixing(), graph, moving, momentum=0.9)[0], expected)


def test_local_sgd_with_momentum_averages_the_parameters_only():
    """M_i = β M_i + g_i stays with its node; x ← mean of x − η M_i."""
    X, M, expected = start(), 0.0, []
    for t in range(STEPS):
        M = 0.9 * M + gradients(X, t)
        X = np.tile((X - LR * moving(t) * M).mean(0), (N, 1))
        expected.append(X)
    compare(run(LocalSGD(), NoMixing(), random_connected(N), moving, momentum=0.9)[0], expected)
