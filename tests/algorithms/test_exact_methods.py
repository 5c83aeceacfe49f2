"""Where the algorithms end, and how fast, on quadratics without noise, against linear algebra; and where D² is stable.

On quadratics ∇f_i(x) = H_i x + c_i every method is a linear map, so its limit is the solution of a linear system and
its rate a spectral radius. Both are computed here, in NumPy, from the papers' equations with nodes as rows and P = Wᵀ;
vec(X) stacks the rows, so that P is P ⊗ I and the gradients are blockdiag(H_i). The iterates themselves:
tests/theory/test_matrix_forms.py.
"""

import itertools
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag

import mixwise.algorithms as alg
import mixwise.mixing as mx
from builders import cases, refused, sgd, simulated, well_conditioned
from mixwise.algorithms.exact import check_d2_stability
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, random_connected, ring, social_network, torus
from mixwise.policies import Tree
from mixwise.training import factor

N, D = 8, 4
W = mx.lazy_metropolis_hastings(random_connected(N, keep=0.6, seed=2))
P = np.kron(W.to_dense().T, np.eye(D))
ONE = np.eye(N * D)
TREE = Graph(N, [(0, 3), (3, 1), (3, 4), (4, 2), (4, 7), (7, 5), (7, 6)])


def task(seed=0):
    return well_conditioned(N, D, seed)


@lru_cache
def hessian(seed=0):
    """blockdiag(H_i), H_i = 2 A_iᵀ A_i."""
    return block_diag(*(2 * A.T @ A for A in task(seed).A.numpy()))


def linear(seed=0):
    """c: the gradients at 0."""
    return task(seed).full_gradients(torch.zeros(D, dtype=torch.float64)).numpy().ravel()


def optimum(seed=0):
    """x* on every node, from Σ H_i x + c_i = 0."""
    blocks = hessian(seed).reshape(N, D, N, D)
    mean = sum(blocks[i, :, i] for i in range(N))
    return np.tile(-np.linalg.solve(mean, linear(seed).reshape(N, D).sum(0)), N)


def make(algorithm, lr, *, policy=None, graph=None, seed=0, schedule=None, **options):
    scheduler = None if schedule is None else lambda o: torch.optim.lr_scheduler.LambdaLR(o, schedule)
    optimizer = sgd(lr, **options)
    return simulated(
        policy or W, algorithm, graph or W.graph, task=task(seed), optimizer=optimizer, scheduler=scheduler
    )


def settle(training, steps):
    for _ in range(steps):
        training.step()
    return training.models.numpy().ravel().copy()


def distance(x, seed=0):
    """(1/n) Σ ‖x_i − x*‖²."""
    return float(np.square(x - optimum(seed)).sum() / N)


# --- exact methods find the optimum ---
EXACT = {
    "d2": (alg.D2, {}),
    "extra": (alg.EXTRA, {}),
    "gradient tracking": (alg.GradientTracking, {}),
    "relay": (alg.RelaySGD, {"policy": Tree(TREE), "graph": TREE}),
}


SCHEDULE = factor(500, warmup=0.02, decay_at=(0.03, 0.04), gamma=0.8)  # while the gradients are still large
RUNS = [(0.4, {}), (0.4, {"seed": 1}), (0.1, {"momentum": 0.7, "nesterov": True}), (0.6, {"schedule": SCHEDULE})]


@pytest.mark.parametrize(("share", "options"), RUNS, ids=["plain", "other data", "momentum", "schedule"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_reach_the_optimum(name, share, options):
    """It is where the sum of the gradients is 0; momentum only multiplies it, whatever the step sizes were."""
    (algorithm, more), seed = EXACT[name], options.get("seed", 0)
    assert distance(settle(make(algorithm(), share / task(seed).smoothness, **options, **more), 500), seed) < 1e-8


# --- where the others end: the solution of a linear system ---
def dsgd_limit(eta, seed=0):
    """X = P (X − η (H X + c))."""
    return np.linalg.solve(ONE - P @ (ONE - eta * hessian(seed)), -eta * P @ linear(seed))


def while_adapt_limit(eta, seed=0):
    """X = P X − η (H X + c)."""
    return np.linalg.solve(ONE - P + eta * hessian(seed), -eta * linear(seed))


def then_adapt_limit(eta, seed=0):
    """ψ = P X;  X = ψ − η (H ψ + c): the models are the rows before mixing."""
    return np.linalg.solve(ONE - (ONE - eta * hessian(seed)) @ P, -eta * linear(seed))


BETA = 0.8
# what it is, its optimizer's momentum, and where it ends with step size η
BIASED = {
    "dsgd": (alg.DSGD, {}, dsgd_limit),
    "combine while adapt": (alg.CombineWhileAdapt, {}, while_adapt_limit),
    "combine then adapt": (alg.CombineThenAdapt, {}, then_adapt_limit),
    # A momentum of the optimizer is a step size 1 / (1 − β) times as large in the end.
    "dsgd, momentum": (alg.DSGD, {"momentum": BETA}, lambda eta: dsgd_limit(eta / (1 - BETA))),
    # A momentum of the movement is 0 where nothing moves: the limit is that of D-SGD with the same η.
    "decentlam": (lambda: alg.DecentLaM(BETA), {}, dsgd_limit),
    "quasi-global": (lambda: alg.QuasiGlobalMomentum(BETA, nesterov=False), {}, dsgd_limit),
    "quasi-global, mu": (lambda: alg.QuasiGlobalMomentum(BETA, mu=0.5, nesterov=False), {}, dsgd_limit),
    "quasi-global, Nesterov": (lambda: alg.QuasiGlobalMomentum(BETA), {}, lambda eta: dsgd_limit(eta * (1 + BETA))),
}


@pytest.mark.parametrize("name", BIASED)
def test_the_limit_is_the_solution_of_its_linear_system(name):
    algorithm, options, limit = BIASED[name]
    eta = 0.15 / task().smoothness
    found = settle(make(algorithm(), eta, **options), 450)
    expected = limit(eta)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert distance(expected) > 1e-3  # none of them ends at the optimum


def test_plain_momentum_multiplies_the_bias_and_decentlam_and_quasi_global_momentum_do_not():
    """By 1 / (1 − β)², to leading order in η / (1 − β) (Yuan et al. 2021), measured at the end of runs."""
    eta, beta = 0.02 / task().smoothness, 0.5
    bias = distance(dsgd_limit(eta))
    for algorithm in (alg.DecentLaM(beta), alg.QuasiGlobalMomentum(beta, nesterov=False)):
        assert distance(settle(make(algorithm, eta), 1000)) == pytest.approx(bias, rel=0.01)
    plain = distance(settle(make(alg.DSGD(), eta, momentum=beta), 1000))
    assert plain / bias == pytest.approx(1 / (1 - beta) ** 2, rel=0.1)


# --- where D² is stable: if and only if its recursion contracts; other matrices are rejected before they mix ---
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
    return mx.MixingMatrix.from_dense(np.array([[1 - weight, weight], [weight, 1 - weight]]))


def circulant(n, *shares):
    """Each node keeps the first share and sends the k-th to the k-th node after it; eigenvalues are complex."""
    dense = sum(share * np.roll(np.eye(n), k, axis=1) for k, share in enumerate(shares))
    return mx.MixingMatrix.from_dense(dense)


@pytest.mark.parametrize("eigenvalue", [-1, -0.8, -0.4, -0.335, -0.332, -0.2, -1e-3, 0, 0.1, 0.5, 0.9, 0.99])
def test_a_real_eigenvalue_is_accepted_if_and_only_if_the_recursion_contracts(eigenvalue):
    W = pair((1 - eigenvalue) / 2)
    assert mx.eigenvalues(W).min() == pytest.approx(min(eigenvalue, 1), abs=1e-12)
    assert accepted(W) == (eigenvalue > -1 / 3)
    rate = growth(W)
    assert accepted(W) == (rate < 1)
    roots = np.roots([1, -2 * eigenvalue, eigenvalue])
    assert rate == pytest.approx(np.abs(roots).max(), rel=1e-3, abs=1e-6)


@cases(
    "n, shares",
    *itertools.product([3, 5, 8], [(0.9, 0.1), (0.5, 0.5), (0.3, 0.7)]),
    (6, (0.4, 0.3, 0.3)),
    (3, (0.4, 0.35, 0.25)),
    (4, (0.4, 0.3, 0.2, 0.1)),
    (4, (0.7, 0.2, 0.0, 0.1)),
    (5, (0.25, 0.25, 0.2, 0.15, 0.15)),
    (6, (0.6, 0.1, 0.1, 0.1, 0.1)),
)
def test_complex_eigenvalues_are_accepted_if_and_only_if_the_recursion_contracts(n, shares):
    W = circulant(n, *shares)
    rate = growth(W)
    assert abs(rate - 1) > 1e-3  # no case in doubt
    assert accepted(W) == (rate < 1)


@pytest.mark.parametrize(("graph", "smallest"), [(ring(16), -1 / 3), (torus(4, 4), -0.6), (social_network(), -0.43)])
def test_metropolis_hastings_is_refused_on_the_graphs_of_the_paper(graph, smallest):
    W = mx.metropolis_hastings(graph)
    assert mx.eigenvalues(W).min() == pytest.approx(smallest, abs=5e-3)
    refused(MixingError, r"eigenvalue -0\.\d+.*unit disc.*lazy\(symmetrized\(W\)\)", check_d2_stability, W)
    check_d2_stability(mx.lazy(mx.symmetrized(W)))


@pytest.mark.parametrize("graph", [complete(5), chain(2), ring(3), Graph(3, [])])
def test_full_averaging_and_no_mixing_at_all_are_stable(graph):
    W = mx.uniform(graph)
    check_d2_stability(W)
    if graph.is_connected:
        assert growth(W) < 1e-6


# --- how fast ---
def dsgd_operator(eta):
    return P @ (ONE - eta * hessian())


def d2_operator(eta):
    """(X⁺, ψ⁺) of (X, ψ): ψ⁺ = (1 − ηH) X;  X⁺ = P (ψ⁺ + X − ψ)."""
    step, zero = ONE - eta * hessian(), np.zeros_like(ONE)
    return np.block([[P @ (step + ONE), -P], [step, zero]])


def extra_operator(eta):
    """X⁺⁺ = (I + P) X⁺ − (I + P)/2 X − η H (X⁺ − X), on the pair (X⁺, X)."""
    H = hessian()
    return np.block([[ONE + P - eta * H, -(ONE + P) / 2 + eta * H], [ONE, np.zeros_like(ONE)]])


def tracking_operator(eta):
    """X⁺ = P (X − η Y);  Y⁺ = P Y + H (X⁺ − X)."""
    H = hessian()
    return np.block([[P, -eta * P], [H @ (P - ONE), P - eta * H @ P]])


def relay_operator(eta):
    """x_i⁺ = (1/n) Σ_j x′_j of h − 1 steps ago, j being h ≥ 1 hops away, and of now for j = i."""
    hops = np.full((N, N), np.inf)
    hops[tuple(np.array(TREE.edges).T)] = 1
    hops = np.minimum(hops, hops.T)
    np.fill_diagonal(hops, 0)
    for k in range(N):
        hops = np.minimum(hops, hops[:, [k]] + hops[[k]])
    age = np.maximum(hops - 1, 0)
    step, depth = ONE - eta * hessian(), int(age.max()) + 1
    first = [np.kron((age == a) / N, np.eye(D)) @ step for a in range(depth)]
    shift = np.eye((depth - 1) * N * D, depth * N * D)
    return np.vstack([np.hstack(first), shift])


def radius(operator):
    """The largest modulus of an eigenvalue, but for 1: that is what the method conserves, such as mean(Y − G)."""
    values = np.linalg.eigvals(operator)
    return float(np.abs(values[np.abs(values - 1) > 1e-7]).max())


@pytest.mark.parametrize(
    ("algorithm", "operator", "share", "options"),
    [
        (alg.DSGD, dsgd_operator, 0.4, {}),
        (alg.D2, d2_operator, 0.2, {}),
        (alg.D2, d2_operator, 0.4, {}),
        (alg.EXTRA, extra_operator, 0.2, {}),
        (alg.EXTRA, extra_operator, 0.6, {}),  # a complex pair leads
        (alg.GradientTracking, tracking_operator, 0.15, {}),
        (alg.GradientTracking, tracking_operator, 0.4, {}),
        (alg.RelaySGD, relay_operator, 0.4, EXACT["relay"][1]),
    ],
)
def test_the_rate_is_the_spectral_radius(algorithm, operator, share, options):
    """Measured from distance 1e-3 to 1e-9: late enough for one eigenvalue to lead by, early enough for rounding."""
    eta = share / task().smoothness
    limit = dsgd_limit(eta) if algorithm is alg.DSGD else optimum()
    training, errors = make(algorithm(), eta, **options), []
    while not errors or errors[-1] > 1e-9:
        training.step()
        errors.append(np.linalg.norm(training.X.numpy().ravel() - limit))
        assert training.t < 3000
    late = np.flatnonzero((np.array(errors) < 1e-3) & (np.array(errors) > 1e-9))
    slope = np.polyfit(late, np.log(np.array(errors)[late]), 1)[0]
    assert slope == pytest.approx(np.log(radius(operator(eta))), rel=0.02)
