"""Iterates of the algorithms against the equations of their papers, written out here in NumPy, nodes as rows.

Every reference below knows W, the stochastic gradients and the step sizes η_t, and nothing of `mixwise.algorithms`.
P is Wᵀ, so that a gossip step is P X. X′ is X after τ local steps of SGD with momentum, η the sum of their step sizes;
with τ = 1, X′ = X − η M. Float64: both sides do the same sums in another order, on iterates of size 1 to 10, and agree
to 1e-11.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, islice

import numpy as np
import pytest
import torch

import mixwise.algorithms as alg
from builders import simulated
from mixwise.graphs import Graph, complete, directed_ring, random_connected, ring, torus
from mixwise.mixing import MixingMatrix, metropolis_hastings, minimize_gme, uniform
from mixwise.needs import Provides
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Alternating, Decoupled, HeterogeneityAware, NoMixing, Policy, Product, RandomChoice, Tree
from mixwise.seeding import generator, stream
from mixwise.sketch import ExactSketch
from mixwise.tasks import random_quadratics
from planning import Planner

pytestmark = pytest.mark.numerics

N, D, STEPS, LR = 8, 6, 50, 0.005
I = np.eye(N)  # noqa: E741 - the identity


# --- what both sides share: the data, the graph, the weights, the step sizes ---
def constant(t):
    return 1.0


def moving(t):
    """Up, down, and jumps, also inside of a round: whatever a schedule may do, except 0."""
    return (0.2 + 0.04 * t if t < 20 else 1.0 if t < 30 else 0.3) * (1.5 if t % 7 == 3 else 1.0)


@lru_cache
def task(seed=0):
    return random_quadratics(N, dim=D, noise=0.3, seed=seed)


def start(seed=0):
    return task(seed).initial(range(N)).numpy()


def scaled(graph, seed, doubly=True):
    """Random positive weights on the arcs and loops of a graph, scaled until rows, and columns, sum to 1."""
    W = np.zeros((N, N))
    W[graph.pattern.rows, graph.pattern.cols] = np.random.default_rng(seed).uniform(0.05, 1, len(graph.pattern.rows))
    for _ in range(500 if doubly else 0):
        W /= W.sum(0, keepdims=True)
        W /= W.sum(1, keepdims=True)
    return W / W.sum(1, keepdims=True)


@lru_cache
def asymmetric(seed=0):
    """Doubly stochastic on a random connected graph, and not symmetric."""
    graph = random_connected(N, seed=seed)
    W = scaled(graph, seed)
    assert np.abs(W - W.T).max() > 0.1
    return [MixingMatrix.from_dense(W, graph)]


def stable(seed=0):
    """Positive eigenvalues but for a little asymmetry, which tells W from Wᵀ: D² and EXTRA accept it."""
    W = asymmetric(seed)[0].to_dense()
    W = 0.5 * I + 0.4 * (W + W.T) / 2 + 0.1 * W
    assert np.abs(W - W.T).max() > 0.01
    return [MixingMatrix.from_dense(W, asymmetric(seed)[0].graph)]


def one_way(seed):
    """A directed ring and random arcs, and random weights whose rows sum to 1: node i splits what it sends."""
    rng = np.random.default_rng(seed)
    arcs = [(i, (i + 1) % N) for i in range(N)] + [(i, j) for i in range(N) for j in range(N) if rng.random() < 0.2]
    graph = Graph(N, arcs, directed=True)
    W = scaled(graph, seed, doubly=False)
    assert np.abs(W.sum(0) - 1).max() > 0.2  # far from doubly stochastic
    return [MixingMatrix.from_dense(W, graph, kind="sender")]


def in_turn(weights, seed):
    return [*weights(seed), *weights(seed + 5)]


def random_tree(seed):
    """Each node hangs on one before it; then all are renamed."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(N)
    return Graph(N, [(int(names[rng.integers(0, j)]), int(names[j])) for j in range(1, N)])


class Nodes:
    """What all references do: local steps on every node, and P of the round. After `local`, η is of this round."""

    def __init__(self, weights, tau=1, schedule=constant, momentum=0.0, seed=0):
        self.weights, self.tau, self.schedule, self.momentum, self.seed = weights, tau, schedule, momentum, seed
        self.t, self.M, self.around = 0, 0.0, lambda G: G

    def local(self, X, direction=lambda G: G):
        """X′: row i follows the stochastic gradients of node i at its own row, from the task's own stream of noise."""
        self.eta, r = 0.0, self.t // self.tau
        self.P = self.weights[r % len(self.weights)].to_dense().T if isinstance(self.weights, list) else None
        for _ in range(self.tau):
            G = task(self.seed).losses_and_gradients(torch.from_numpy(np.array(X)), range(N), self.t)[1].numpy()
            self.M, eta = self.momentum * self.M + self.around(direction(G)), LR * self.schedule(self.t)
            X, self.eta, self.t = X - eta * self.M, self.eta + eta, self.t + 1
        return X


# --- D-SGD and its orders of mixing and stepping: each yields the models after every round ---
def dsgd(nodes, X):
    """X ← P X′ (Lian et al. 2017; adapt, then combine)."""
    while True:
        half = nodes.local(X)
        X = nodes.P @ half
        yield X


def combine_then_adapt(nodes, X):
    """ψ = P X;  X ← ψ′ (Cattivelli and Sayed 2010): the gradient is that of the mixed point. P X⁽⁰⁾ = X⁽⁰⁾."""
    while True:
        X = nodes.local(X)
        yield X
        X = nodes.P @ X


def combine_while_adapt(nodes, X):
    """X⁽ᵗ⁺¹⁾ = P⁽ᵗ⁻¹⁾ X⁽ᵗ⁾ − η M (D-PSGD as printed), P⁽⁻¹⁾ = I: the weights are known before the gradient is."""
    P = I
    while True:
        X, P = P @ X - (X - nodes.local(X)), nodes.P
        yield X


def dadam(nodes, X, betas=(0.9, 0.999), eps=1e-8):
    """Adam with its bias correction on every node, then gossip on the parameters alone."""
    m = v = 0.0

    def adam(G):
        nonlocal m, v
        m, v = betas[0] * m + (1 - betas[0]) * G, betas[1] * v + (1 - betas[1]) * G**2
        return m / (1 - betas[0] ** (nodes.t + 1)) / (np.sqrt(v / (1 - betas[1] ** (nodes.t + 1))) + eps)

    nodes.around = adam
    yield from dsgd(nodes, X)


def aware_dsgd(nodes, X, graph, period, between=None, parameters=False):
    """HA-DSGD (Algorithm 2): W = GME-opt of the update, every H mixings, else the W of before.

    Of the parameters in place of the update (Section 5.4); with other weights at odd mixings (as in the experiments).
    """
    for t in count():
        half = nodes.local(X)
        if t % period == 0:
            seen = half if parameters else X - half
            centered = seen - seen.mean(0)
            W = minimize_gme(centered @ centered.T, graph, regularization=0.05).W
        X = (W if between is None or t % 2 == 0 else between).to_dense().T @ half
        yield X


def decoupled(nodes, X):
    """X ← W_pᵀ X − W_gᵀ U (Algorithm 4)."""
    W_p, W_g = (W.to_dense() for W in nodes.weights)
    while True:
        X = W_p.T @ X - W_g.T @ (X - nodes.local(X))
        yield X


# --- exact methods ---
def d2(nodes, X):
    """X⁽ᵗ⁺¹⁾ = P (2 X⁽ᵗ⁾ − X⁽ᵗ⁻¹⁾ − η_t G⁽ᵗ⁾ + η_{t−1} G⁽ᵗ⁻¹⁾), X⁽¹⁾ = P (X⁽⁰⁾ − η G⁽⁰⁾) (Tang et al. 2018).

    Each gradient keeps the step size of its own time, or else the sum would not telescope.
    """
    X_prev, step_prev = X, 0.0
    while True:
        step = X - nodes.local(X)
        X, X_prev, step_prev = nodes.P @ (2 * X - X_prev - step + step_prev), X, step
        yield X


def extra_two_steps(nodes, X):
    """X⁽ᵏ⁺²⁾ = (I + P) X⁽ᵏ⁺¹⁾ − (I + P)/2 X⁽ᵏ⁾ − α (G⁽ᵏ⁺¹⁾ − G⁽ᵏ⁾), X⁽¹⁾ = P X⁽⁰⁾ − α G⁽⁰⁾ (Shi et al. 2015)."""
    X_prev, step_prev = X, X - nodes.local(X)
    X = nodes.P @ X - step_prev
    while True:
        yield X
        step, P = X - nodes.local(X), nodes.P
        X, X_prev, step_prev = (I + P) @ X - (I + P) / 2 @ X_prev - step + step_prev, X, step


def extra(nodes, X):
    """As a primal-dual method: X ← P X − η (M − Y), Y = Σ_s (P − I) X⁽ˢ⁾ / (2 η_s), for step sizes that change.

    At the optimum Y = ∇f / (1 − β), whatever the step size is; with η constant it is the sum form of the paper.
    """
    Y = 0.0
    while True:
        step = X - nodes.local(X)
        X, Y = nodes.P @ X - step + nodes.eta * Y, Y + (nodes.P @ X - X) / (2 * nodes.eta)
        yield X


def gradient_tracking(nodes, X):
    """Y⁽⁰⁾ = G⁽⁰⁾;  X⁽ᵗ⁺¹⁾ = P X′ along Y⁽ᵗ⁾;  Y⁽ᵗ⁺¹⁾ = P Y⁽ᵗ⁾ + G⁽ᵗ⁺¹⁾ − G⁽ᵗ⁾, the mean of which is that of G."""
    Y = G_prev = None

    def track(G):
        nonlocal Y, G_prev
        Y, G_prev = G if Y is None else nodes.P @ Y + G - G_prev, G
        assert np.abs(Y.mean(0) - G.mean(0)).max() < 1e-11
        return Y

    while True:
        X = nodes.local(X, track)
        X = nodes.P @ X
        yield X


def k_gt(nodes, X, beta=0.0, nesterov=False):
    """z = Σ_k η (g + c);  c⁺ = c − z/(Kη) + P z/(Kη);  x⁺ = P (x − z) (Liu et al. 2023, Algorithm 1; K = τ).

    Momentum tracking has u = βu + g in the place of g (Takezawa et al. 2022), or with Nesterov's look-ahead g + βu.
    """
    c = u = 0.0
    followed = []

    def follow(G):
        nonlocal u
        u = beta * u + G
        followed.append((G + beta * u if nesterov else u) + c)
        return followed[-1]

    while True:
        followed.clear()
        X = nodes.local(X, follow)
        c, X = c + nodes.P @ np.mean(followed, 0) - np.mean(followed, 0), nodes.P @ X
        yield X


# --- momentum for heterogeneous data ---
def quasi_global(nodes, X, beta=0.9, mu=None, nesterov=True, inner=dsgd):
    """m = β m̂ + g;  x½ = x − η m, or x − η (β m + g);  x⁺ = P x½;  m̂⁺ = μ m̂ + (1 − μ)(x − x⁺)/η (Lin et al. 2021).

    Around another method, its movement takes the place of that of x⁺ = P x½, and g is what that one follows.
    """
    m_hat, mu = np.zeros_like(X), beta if mu is None else mu
    nodes.around = lambda g: beta * (beta * m_hat + g) + g if nesterov else beta * m_hat + g
    for X_new in inner(nodes, X):
        m_hat = mu * m_hat + (1 - mu) * (X - X_new) / nodes.eta
        yield (X := X_new)


def quasi_global_adam(nodes, X, betas=(0.9, 0.999), eps=1e-3):
    """Lin et al. 2021, Algorithm of QG-DAdam; both moments learn from d / ‖d‖ of the node's movement."""
    m_hat = v_hat = np.zeros_like(X)

    def follow(m, v, d):
        return betas[0] * m + (1 - betas[0]) * d, betas[1] * v + (1 - betas[1]) * d * d

    def adam(G):
        m, v = follow(m_hat, v_hat, G)
        return m / (np.sqrt(v) + eps)

    nodes.around = adam
    for X_new in dsgd(nodes, X):
        m_hat, v_hat = follow(m_hat, v_hat, (X - X_new) / np.linalg.norm(X - X_new, axis=1, keepdims=True))
        yield (X := X_new)


def decentlam(nodes, X, beta=0.8):
    """g̃ = x/γ − P (x − γ g)/γ;  m = β m + g̃;  x ← x − γ m (Yuan et al. 2021, Algorithm 2)."""
    m = 0.0
    while True:
        half = nodes.local(X)
        m = beta * m + X / nodes.eta - nodes.P @ half / nodes.eta
        X = X - nodes.eta * m
        yield X


# --- sums along a tree, sums with weights, compressed messages, and averages over all nodes ---
def relay(nodes, X):
    """Vogels et al. 2021, Algorithm 1: one message and one count per directed edge, in dictionaries."""
    near = {i: nodes.weights.neighbors(i) for i in range(N)}
    arcs = [(i, j) for i in near for j in near[i]]
    message, count, rounds = dict.fromkeys(arcs, np.zeros(D)), dict.fromkeys(arcs, 0), 0
    while True:
        half, rounds = nodes.local(X), rounds + 1
        message = {(i, j): half[i] + sum(message[k, i] for k in near[i] if k != j) for i, j in arcs}
        count = {(i, j): 1 + sum(count[k, i] for k in near[i] if k != j) for i, j in arcs}
        heard = np.array([1 + sum(count[j, i] for j in near[i]) for i in near])
        assert (heard.min() == N) == (rounds >= nodes.weights.diameter)
        X = np.stack([half[i] + sum(message[j, i] for j in near[i]) for i in near]) / heard[:, None]
        yield X


def push_sum(nodes, z):
    """SGP (Assran et al. 2019, Algorithm 1): x½ = x − η M(z);  x⁺ = P x½;  w⁺ = P w;  z⁺ = x⁺ / w⁺."""
    numerators, nodes.mass = z, np.ones((N, 1))
    while True:
        half = numerators - (z - nodes.local(z))
        numerators, nodes.mass = nodes.P @ half, nodes.P @ nodes.mass
        z = numerators / nodes.mass
        yield z


def top(k, row, node, mixing):
    """The k entries that are largest in modulus, the rest 0."""
    return np.where(np.argsort(np.argsort(-np.abs(row))) < k, row, 0.0)


def rounded(bits, row, node, mixing):
    """Q of Alistarh et al. 2017, scaled to be a contraction, on the library's stream of draws."""
    s = 2**bits - 1
    omega, norm = 1 + min(D / s**2, math.sqrt(D) / s), np.linalg.norm(row)
    draws = generator(stream(0, "compressor"), "quantize", node, mixing)
    levels = np.floor(s * np.abs(row) / norm + torch.rand(D, generator=draws, dtype=torch.float64).numpy())
    return np.sign(row) * norm / (s * omega) * levels


def choco(nodes, X, compress, gamma=0.3):
    """q_i = Q(x_i½ − x̂_i);  x̂_i ← x̂_i + q_i;  x_i⁺ = x_i½ + γ Σ_j w_ji (x̂_j − x̂_i) (Koloskova et al. 2019)."""
    public, mixing = np.zeros((N, D)), 0
    while True:
        half = nodes.local(X)
        public = public + np.stack([compress(half[i] - public[i], i, mixing) for i in range(N)])
        X, mixing = half + gamma * (nodes.P @ public - public), mixing + 1
        yield X


def all_reduce(nodes, X):
    """x ← x − η M, M = β M + mean of the nodes' gradients at x: one model."""
    while True:
        X = nodes.local(X, lambda G: np.tile(G.mean(0), (N, 1)))
        yield X


def local_sgd(nodes, X):
    """M_i = β M_i + g_i stays with its node; x ← mean of the nodes' x′."""
    while True:
        X = np.tile(nodes.local(X).mean(0), (N, 1))
        yield X


# --- the comparison ---
def setting(weights):
    """The policy and the graph for a tree, for matrices that take turns, and for an average over all nodes."""
    if isinstance(weights, Graph):
        return Tree(weights), weights
    if not weights:
        return NoMixing(), random_connected(N)
    arcs = [arc for W in weights for arc in zip(W.graph.arcs.senders, W.graph.arcs.receivers, strict=True)]
    return Alternating(weights), Graph(N, arcs, directed=any(W.graph.directed for W in weights))


def compare(algorithm, reference, weights, *, tau=1, schedule=constant, momentum=0.0, seed=0, **options):
    """The same models after every round; and it is a test only if the rows have moved."""
    policy, graph = options.pop("on", None) or setting(weights)
    rates = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)  # noqa: E731
    options = {"task": task(seed), "lr": LR, "momentum": momentum, "scheduler": rates, "local_steps": tau, **options}
    training = simulated(policy, algorithm, graph, **options)
    nodes = Nodes(weights, tau, schedule, momentum, seed)
    for expected in islice(reference(nodes, start(seed)), STEPS // tau):
        plans = [training.step().plan for _ in range(tau)]
        assert [plan is not None for plan in plans] == [False] * (tau - 1) + [True]
        np.testing.assert_allclose(training.models.numpy(), expected, rtol=0, atol=1e-11)
    assert np.abs(expected - start(seed)).max() > 0.1
    return nodes, training


QG, QG_ADAM, PLAIN = alg.QuasiGlobalMomentum, alg.QuasiGlobalAdam, {"nesterov": False}
asymmetric_in_turn, one_way_in_turn = partial(in_turn, asymmetric), partial(in_turn, one_way)
top_1, top_3, top_all = (partial(choco, compress=partial(top, k)) for k in (1, 3, D))
FORMS = {
    "dsgd": (alg.DSGD(), dsgd, asymmetric),
    "combine then adapt": (alg.CombineThenAdapt(), combine_then_adapt, asymmetric),
    "combine while adapt": (alg.CombineWhileAdapt(), combine_while_adapt, asymmetric),
    "combine while adapt, weights in turn": (alg.CombineWhileAdapt(), combine_while_adapt, asymmetric_in_turn),
    "d2": (alg.D2(), d2, stable),
    "extra": (alg.EXTRA(), extra, stable),
    "gradient tracking": (alg.GradientTracking(), k_gt, asymmetric),
    "relay": (alg.RelaySGD(), relay, random_tree),
    "push-sum": (alg.PushSum(), push_sum, one_way),
    "push-sum, weights in turn": (alg.PushSum(), push_sum, one_way_in_turn),
    "choco, one entry": (alg.Choco(alg.TopK(0.2), 0.3), top_1, asymmetric),
    "choco, half": (alg.Choco(alg.TopK(0.5), 0.3), top_3, asymmetric),
    "choco, all": (alg.Choco(alg.TopK(1.0), 0.3), top_all, asymmetric),
    "choco, rounded": (alg.Choco(alg.Quantize(3), 0.3), partial(choco, compress=partial(rounded, 3)), asymmetric),
    "local sgd": (alg.LocalSGD(), local_sgd, lambda seed: None),
}
OWN_MOMENTUM = {  # so the optimizer has none
    "quasi-global": (QG(), quasi_global, asymmetric),
    "quasi-global, mu": (QG(mu=0.7), partial(quasi_global, mu=0.7), asymmetric),
    "quasi-global, plain": (QG(**PLAIN), partial(quasi_global, **PLAIN), asymmetric),
    "quasi-global, plain, mu": (QG(mu=0.7, **PLAIN), partial(quasi_global, mu=0.7, **PLAIN), asymmetric),
    "quasi-global adam": (QG_ADAM((0.9, 0.999), 1e-3), quasi_global_adam, asymmetric),
    "quasi-global adam, betas": (QG_ADAM((0.8, 0.95), 1e-3), partial(quasi_global_adam, betas=(0.8, 0.95)), asymmetric),
    "decentlam": (alg.DecentLaM(0.8), decentlam, asymmetric),
    "momentum tracking": (alg.MomentumTracking(0.7), partial(k_gt, beta=0.7), asymmetric_in_turn),
    "momentum tracking, Nesterov": (
        alg.MomentumTracking(0.7, True),
        partial(k_gt, beta=0.7, nesterov=True),
        asymmetric,
    ),
}
for name in ("combine while adapt", "d2", "extra", "gradient tracking", "relay", "push-sum", "local sgd"):
    algorithm, inner, weights = FORMS[name]
    around = partial(quasi_global, mu=0.8, inner=inner, **PLAIN)
    OWN_MOMENTUM[f"quasi-global around {name}"] = QG(mu=0.8, inner=algorithm, **PLAIN), around, weights


@pytest.mark.parametrize(("tau", "schedule", "momentum"), [(1, constant, 0.0), (1, moving, 0.9), (3, moving, 0.0)])
@pytest.mark.parametrize("name", [*FORMS, *OWN_MOMENTUM])
def test_iterates_are_those_of_the_equations(name, tau, schedule, momentum):
    algorithm, reference, weights = {**FORMS, **OWN_MOMENTUM}[name]
    seed, momentum = int(schedule is moving), momentum if name in FORMS else 0.0
    options = {"tau": tau, "schedule": schedule, "momentum": momentum, "seed": seed}
    nodes, training = compare(algorithm, reference, weights(seed), **options)
    if algorithm == alg.PushSum():
        mass = training.driver.algorithm_state.rows["mass"].numpy()
        np.testing.assert_allclose(mass, nodes.mass, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("tau", "momentum"), [(1, 0.0), (1, 0.9), (3, 0.0)])
@pytest.mark.parametrize("graph", [ring(N), random_connected(N, seed=1), torus(2, 4)])
def test_ha_dsgd_is_algorithm_2(graph, tau, momentum):
    """The update is that of the optimizer, over all local steps; λ = 0.05 makes W insensitive to rounding."""
    local = metropolis_hastings(graph)
    for period, option, known in (
        (3, {}, {}),
        (3, {"objective": "parameters"}, {"parameters": True}),
        *((period, {"alternate_with": local}, {"between": local}) for period in (1, 4)),
    ):
        policy = HeterogeneityAware(period, sketch=ExactSketch(), regularization=0.05, **option)
        reference = partial(aware_dsgd, graph=graph, period=period, **known)
        compare(alg.DSGD(), reference, None, on=(policy, graph), tau=tau, momentum=momentum)


def test_drawn_weights_products_two_channels_and_one_way_weights():
    """A product is applied first factor first, in two rounds (Example 3)."""
    A, B, everywhere = asymmetric(0)[0], asymmetric(1)[0], complete(N)
    drawn = RandomChoice([A, B, MixingMatrix.from_dense(I)], [0.2, 0.5, 0.3])
    draws = Planner(drawn, SimulatedNetwork(everywhere), seed=stream(0, "policy"))
    compare(alg.DSGD(), dsgd, [draws.plan(t).params[0] for t in range(STEPS)], on=(drawn, everywhere))
    both = MixingMatrix.from_dense(A.to_dense() @ B.to_dense())
    compare(alg.DSGD(), dsgd, [both], on=(Product([A, B]), everywhere))
    compare(alg.DecoupledDSGD(), decoupled, [A, B], on=(Decoupled(params=A, updates=B), everywhere), momentum=0.9)
    compare(alg.DSGD(), dsgd, [uniform(directed_ring(N))])


@pytest.mark.parametrize("seed", [0, 1])
def test_extra_in_its_two_step_form(seed):
    compare(alg.EXTRA(), extra_two_steps, stable(seed), seed=seed)


@pytest.mark.parametrize(("schedule", "momentum", "seed"), [(constant, 0.0, 0), (moving, 0.9, 1)])
def test_gradient_tracking_with_one_local_step(schedule, momentum, seed):
    compare(
        alg.GradientTracking(), gradient_tracking, asymmetric(seed), schedule=schedule, momentum=momentum, seed=seed
    )


def test_all_reduce_is_one_model_with_the_mean_gradient():
    compare(alg.AllReduceSGD(), all_reduce, None, schedule=moving, momentum=0.9)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_dadam(betas):
    scaled = lambda t: 10 * moving(t)  # noqa: E731
    adam = lambda rows: torch.optim.Adam(rows, lr=LR, betas=betas, eps=1e-8)  # noqa: E731
    compare(alg.DAdam(), partial(dadam, betas=betas), asymmetric(), schedule=scaled, optimizer=adam)


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

    def reference(nodes, X):
        before = list(islice(relay(nodes, X), 20))
        yield from before
        nodes.weights = trees[1]
        yield from relay(nodes, before[-1])

    compare(alg.RelaySGD(), reference, trees[0], on=(Switching(*trees), complete(N)))
