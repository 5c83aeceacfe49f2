"""τ > 1 local steps between two mixings: what each algorithm makes of them; and a run may stop amid them.

References are written here in NumPy from the methods' equations, nodes as rows, P = Wᵀ, float64: both sides do the same
sums in another order and agree to 1e-11.
"""

from functools import lru_cache

import numpy as np
import pytest
import torch

import mixwise.algorithms as alg
from builders import simulated, well_conditioned
from mixwise.graphs import Graph, random_connected
from mixwise.mixing import lazy, metropolis_hastings, uniform_sender
from mixwise.plan import Plan
from mixwise.policies import Decoupled, HeterogeneityAware, Look, NoMixing, Policy, Tree
from mixwise.sketch import CountSketch
from mixwise.state import encode
from mixwise.tasks import random_quadratics
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint

N, D, TAU, ROUNDS, LR = 6, 5, 3, 12, 0.004
GRAPH = random_connected(N, keep=0.6, seed=1)
W = lazy(metropolis_hastings(GRAPH))
P = W.to_dense().T
TREE = Graph(N, [(2, 0), (2, 4), (4, 1), (4, 5), (5, 3)])
ONE_WAY = Graph(N, [(i, (i + 1) % N) for i in range(N)] + [(0, 3), (2, 5), (5, 1)], directed=True)
SENDER = uniform_sender(ONE_WAY)
CLOSE = {"rtol": 0, "atol": 1e-11}


@lru_cache
def task():
    return random_quadratics(N, dim=D, noise=0.3, seed=0)


def gradients(X, t):
    return task().losses_and_gradients(torch.from_numpy(np.array(X)), range(N), t)[1].numpy()


def start():
    return task().initial(range(N)).numpy()


def schedule(t):
    """It changes inside of a round."""
    return 0.5 + 0.05 * t if t < 17 else 0.4


def make(algorithm, policy=None, graph=GRAPH, *, the_task=None, lr=LR, tau=TAU, at=schedule, optimizer=None, **options):
    sgd = lambda blocks: torch.optim.SGD(blocks, lr=lr, **options)  # noqa: E731
    rates = lambda o: torch.optim.lr_scheduler.LambdaLR(o, at)  # noqa: E731
    more = {"task": the_task or task(), "optimizer": optimizer or sgd, "scheduler": rates, "local_steps": tau}
    return simulated(policy or W, algorithm, graph, **more)


def local(X, r, direction=lambda G: G):
    """τ steps of SGD on every node: where they lead, and the sum of their step sizes."""
    rates = [LR * schedule(t) for t in range(r * TAU, (r + 1) * TAU)]
    for k, rate in enumerate(rates):
        X = X - rate * direction(gradients(X, r * TAU + k))
    return X, sum(rates)


# --- by hand ---
def test_dsgd_takes_its_local_steps_and_then_mixes_once():
    """Also between the mixings it is what SGD with momentum would do; the momentum goes on over mixings."""
    X, M, training = start(), 0.0, make(alg.DSGD(), momentum=0.9)
    for t in range(ROUNDS * TAU):
        M = 0.9 * M + gradients(X, t)
        X = X - LR * schedule(t) * M
        if t % TAU == TAU - 1:
            X = P @ X
        step = training.step()
        np.testing.assert_allclose(training.X.numpy(), X, **CLOSE)
        assert (step.plan is not None) == (t % TAU == TAU - 1)


# Each takes the rows at the last mixing and the round's number, and keeps what it remembers in a dictionary.
def while_adapt(X, r, memory):
    stepped, _ = local(X, r)
    return P @ X - (X - stepped)


def d2(X, r, memory):
    psi, _ = local(X, r)
    phi = psi if r == 0 else psi + X - memory["psi"]
    memory["psi"] = psi
    return P @ phi


def extra(X, r, memory):
    """X⁺ = P X − U + η Y, Y = Σ (P − I) X / (2 η), η the sum of the round's step sizes."""
    stepped, eta = local(X, r)
    Y = memory.get("Y", 0.0)
    memory["Y"] = Y + (P @ X - X) / (2 * eta)
    return P @ X - (X - stepped) + eta * Y


def quasi_global(X, r, memory):
    """The momentum stays the same in a round; d is the movement of the round per unit of step size."""
    m = memory.get("m", 0.0)
    stepped, eta = local(X, r, lambda G: 0.9 * m + G)
    X_new = P @ stepped
    memory["m"] = 0.9 * m + 0.1 * (X - X_new) / eta
    return X_new


def decentlam(X, r, memory):
    stepped, eta = local(X, r)
    memory["m"] = 0.9 * memory.get("m", 0.0) + (X - P @ stepped) / eta
    return X - eta * memory["m"]


def push_sum(X, r, memory):
    w, Q = memory.get("w", np.ones((N, 1))), SENDER.to_dense().T
    stepped, _ = local(X, r)
    numerators, memory["w"] = Q @ (w * X - (X - stepped)), Q @ w
    return numerators / memory["w"]


def choco(X, r, memory):
    stepped, _ = local(X, r)
    missing = stepped - memory.get("public", np.zeros((N, D)))
    for row in missing:
        row[np.argsort(np.abs(row))[:-2]] = 0  # two of five entries travel
    memory["public"] = memory.get("public", 0.0) + missing
    return stepped + 0.3 * (P - np.eye(N)) @ memory["public"]


def relay(X, r, memory):
    stepped, _ = local(X, r)
    sums, counts = memory.get("sums", {}), memory.get("counts", {})
    near = {i: TREE.neighbors(i) for i in range(N)}
    arcs = [(i, j) for i in near for j in near[i]]
    memory["sums"] = {(i, j): stepped[i] + sum(sums.get((k, i), 0.0) for k in near[i] if k != j) for i, j in arcs}
    memory["counts"] = {(i, j): 1 + sum(counts.get((k, i), 0) for k in near[i] if k != j) for i, j in arcs}
    heard = [1 + sum(memory["counts"][j, i] for j in near[i]) for i in near]
    return np.stack([(stepped[i] + sum(memory["sums"][j, i] for j in near[i])) / heard[i] for i in near])


def averaging(X, r, memory):
    return np.tile(local(X, r)[0].mean(0), (N, 1))


BY_HAND = {
    "combine while adapt": (alg.CombineWhileAdapt, while_adapt, {}),
    "d2": (alg.D2, d2, {}),
    "extra": (alg.EXTRA, extra, {}),
    "quasi-global": (lambda: alg.QuasiGlobalMomentum(nesterov=False), quasi_global, {}),
    "decentlam": (alg.DecentLaM, decentlam, {}),
    "push-sum": (alg.PushSum, push_sum, {"policy": SENDER, "graph": ONE_WAY}),
    "choco": (lambda: alg.Choco(alg.TopK(0.4), 0.3), choco, {}),
    "relay": (alg.RelaySGD, relay, {"policy": Tree(TREE), "graph": TREE}),
    "local sgd": (alg.LocalSGD, averaging, {"policy": NoMixing()}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_update_of_a_round_is_that_of_all_its_local_steps(name):
    algorithm, reference, options = BY_HAND[name]
    training, X, memory = make(algorithm(), **options), start(), {}
    for r in range(ROUNDS):
        X = reference(X, r, memory)
        for _ in range(TAU):
            training.step()
        np.testing.assert_allclose(training.X.numpy(), X, **CLOSE)
    assert np.abs(X - start()).max() > 0.1


def test_combine_then_adapt_keeps_the_rows_before_the_mixing_as_models():
    training, Y = make(alg.CombineThenAdapt()), start()
    for r in range(ROUNDS):
        X, _ = local(Y, r)
        Y = P @ X
        for _ in range(TAU):
            training.step()
        np.testing.assert_allclose(training.models.numpy(), X, **CLOSE)
        np.testing.assert_allclose(training.X.numpy(), Y, **CLOSE)


# --- gradient tracking with local steps: K-GT ---
def test_gradient_tracking_with_local_steps_is_k_gt():
    """z = Σ_k η (g + c);  c⁺ = c − z/(Kη) + P z/(Kη);  x⁺ = P (x − z), η constant (Liu et al. 2023, Algorithm 1)."""
    X, c, training = start(), np.zeros((N, D)), make(alg.GradientTracking(), at=lambda t: 1.0)
    for r in range(ROUNDS):
        x, z = X, 0.0
        for k in range(TAU):
            step = LR * (gradients(x, r * TAU + k) + c)
            x, z = x - step, z + step
            training.step()
        c, X = c + (P @ z - z) / (TAU * LR), P @ (X - z)
        np.testing.assert_allclose(training.X.numpy(), X, **CLOSE)
        np.testing.assert_allclose(
            training.driver.algorithm_state.rows["C"].numpy(), c, rtol=0, atol=1e-9
        )  # of size η⁻¹ · 1e-12


NOISELESS = well_conditioned(N, D)


def settled(algorithm, tau, rounds, rate=0.2, **options):
    lr = rate / NOISELESS.smoothness
    training = make(algorithm, the_task=NOISELESS, lr=lr, tau=tau, at=lambda t: 1.0, **options)
    for _ in range(tau * rounds):
        training.step()
    return training


@pytest.mark.parametrize("tau", [2, 5])
def test_gradient_tracking_is_exact_with_local_steps(tau):
    training = settled(alg.GradientTracking(), tau, 250, rate=0.25 / tau)
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] < 1e-8


def local_sgd_limit(tau, rate=0.2):
    """Where the movements of τ local steps from one point cancel: Σ_i (I − (I − ηH_i)^τ)(x − x_i*) = 0."""
    eta, left, right = rate / NOISELESS.smoothness, np.zeros((D, D)), np.zeros(D)
    for A, b in zip(NOISELESS.A.numpy(), NOISELESS.b.numpy(), strict=True):
        moved = np.eye(D) - np.linalg.matrix_power(np.eye(D) - eta * 2 * A.T @ A, tau)
        left, right = left + moved, right + moved @ np.linalg.solve(A, -b)
    return np.linalg.solve(left, right)


@pytest.mark.parametrize("name", ["d2", "extra", "relay", "local sgd"])
def test_the_other_exact_methods_end_where_local_sgd_ends(name):
    """They make the nodes agree, and the sum of the updates 0; with τ > 1 that is not the sum of the gradients."""
    algorithm, _, options = BY_HAND[name]
    training = settled(algorithm(), 5, 200, **options)
    np.testing.assert_allclose(training.X.numpy(), np.tile(local_sgd_limit(5), (N, 1)), rtol=0, atol=1e-8)
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] > 1e-5
    np.testing.assert_allclose(local_sgd_limit(1), NOISELESS.optimum.numpy(), rtol=0, atol=1e-12)


# --- what the policy sees ---
class Watching(Policy):
    """Remembers what it was asked."""

    def __init__(self):
        self.asked, self.updates = [], []

    def looks(self, t, state):
        return Look(update=True) if t % 2 == 0 else None

    def plan(self, round, state, network):
        self.asked.append(round.t)
        self.updates.append(None if self.looks(round.t, state) is None else round.update.numpy())
        return Plan((W,))


@pytest.mark.parametrize("algorithm", [alg.DSGD, alg.CombineWhileAdapt, alg.GradientTracking])
def test_a_policy_counts_mixings_and_sees_the_update_of_all_local_steps(algorithm):
    policy = Watching()
    training = make(algorithm(), policy)
    for r in range(ROUNDS):
        X = training.X.numpy().copy()
        sums = 0.0
        for k in range(TAU):
            step = training.step()
            sums = sums + LR * schedule(r * TAU + k) * step.gradients.numpy()
        assert len(policy.asked) == r + 1
        if r % 2 == 0:
            np.testing.assert_allclose(policy.updates[r], sums, **CLOSE)
        else:
            assert policy.updates[r] is None
        assert not np.array_equal(training.X.numpy(), X)
    assert policy.asked == list(range(ROUNDS))


def test_a_period_counts_mixings():
    """H = 2, τ = 3: weights are optimized at steps 2, 8, 14, …"""
    training = make(alg.DSGD(), HeterogeneityAware(2))
    solved = [t for t in range(18) if (step := training.step()).plan is not None and step.plan.solve is not None]
    assert solved == [2, 8, 14]


# --- a run stops in the middle of a round and goes on with the same bits ---
AWARE = HeterogeneityAware(2, sketch=CountSketch(4), regularization=0.1)


def adam(blocks):
    return torch.optim.Adam(blocks, lr=0.01)


def around(inner, kind=alg.QuasiGlobalMomentum):
    return kind(inner=inner)


ON_TREE, ONE_WAY_ONLY = {"policy": Tree(TREE), "graph": TREE}, {"policy": SENDER, "graph": ONE_WAY}
ALL = {
    "dsgd": (alg.DSGD(), {}),
    "dsgd, momentum": (alg.DSGD(), {"momentum": 0.9, "nesterov": True}),
    "dsgd, aware": (alg.DSGD(), {"policy": AWARE}),
    "dadam": (alg.DAdam(), {"optimizer": adam}),
    "decoupled": (alg.DecoupledDSGD(), {"policy": Decoupled(W, AWARE)}),
    "combine then adapt": (alg.CombineThenAdapt(), {}),
    "combine while adapt": (alg.CombineWhileAdapt(), {"momentum": 0.9}),
    "d2": (alg.D2(), {}),
    "d2, aware": (alg.D2(), {"policy": AWARE}),
    "extra": (alg.EXTRA(), {}),
    "extra, aware": (alg.EXTRA(), {"policy": AWARE}),
    "gradient tracking": (alg.GradientTracking(), {"momentum": 0.5}),
    "gradient tracking, aware": (alg.GradientTracking(), {"policy": AWARE}),
    "quasi-global": (alg.QuasiGlobalMomentum(nesterov=False), {}),
    "quasi-global, Nesterov, aware": (alg.QuasiGlobalMomentum(), {"policy": AWARE}),
    "quasi-global adam": (alg.QuasiGlobalAdam(), {}),
    "quasi-global around relay": (around(alg.RelaySGD()), ON_TREE),
    "quasi-global around d2": (around(alg.D2()), {}),
    "quasi-global around extra": (around(alg.EXTRA()), {}),
    "quasi-global around gradient tracking": (around(alg.GradientTracking()), {}),
    "quasi-global around choco": (around(alg.Choco(alg.Quantize(3))), {}),
    "quasi-global adam around push-sum": (around(alg.PushSum(), alg.QuasiGlobalAdam), ONE_WAY_ONLY),
    "decentlam": (alg.DecentLaM(), {}),
    "relay": (alg.RelaySGD(), {**ON_TREE, "momentum": 0.9}),
    "push-sum": (alg.PushSum(), ONE_WAY_ONLY),
    "choco, top-k": (alg.Choco(alg.TopK(0.4), 0.3), {}),
    "choco, quantized": (alg.Choco(alg.Quantize(2), 0.3), {"momentum": 0.9}),
    "local sgd": (alg.LocalSGD(), {"policy": NoMixing()}),
    "all-reduce": (alg.AllReduceSGD(), {"policy": NoMixing(), "tau": 1, "momentum": 0.9}),
}


@pytest.mark.parametrize("before", [4, 6, 7])
@pytest.mark.parametrize("name", ALL)
def test_a_run_may_stop_at_any_step_and_go_on_with_the_same_bits(name, before, tmp_path):
    algorithm, options = ALL[name]
    training, restored = make(algorithm, **options), make(algorithm, **options)
    for _ in range(before):
        training.step()
    save_checkpoint(training, tmp_path / "c")
    load_checkpoint(restored, tmp_path / "c")
    for _ in range(8):
        training.step()
        restored.step()
        assert torch.equal(restored.X, training.X)
        assert torch.equal(restored.models, training.models)
    first, second = (encode(run.state(), run.network.nodes) for run in (training, restored))
    assert first.tensors.keys() == second.tensors.keys()
    for key, value in first.tensors.items():
        assert torch.equal(second.tensors[key], value), key
    assert (second.values, second.arcs) == (first.values, first.arcs)
