"""What the algorithms conserve, where two of them are the same, which rows they mix, and what they send."""

import itertools
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given

import builders
import mixwise.algorithms as alg
from builders import refused, simulated
from mixwise.errors import MixingError, TrainingError
from mixwise.graphs import Graph, complete, random_connected, ring
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings, uniform
from mixwise.network import Faults, FaultyNetwork, Link, Links, SimulatedNetwork
from mixwise.network.traffic import LONG_ROW
from mixwise.plan import Plan
from mixwise.policies import Decoupled, Fixed, NoMixing, Product, Tree
from mixwise.tasks import random_quadratics
from planning import mixed
from strategies import graphs

N, D, LR, STEPS = 8, 6, 0.004, 40
GRAPH = random_connected(N, seed=4)
W = lazy(metropolis_hastings(GRAPH))
CLOSE = {"rtol": 0, "atol": 1e-12}


@lru_cache
def task():
    return random_quadratics(N, dim=D, noise=0.2)


def make(algorithm, policy=None, graph=GRAPH, *, tau=1, **options):
    policy = policy or (NoMixing() if algorithm.needs.plan == "nothing" else W)
    return simulated(policy, algorithm, graph, task=task(), local_steps=tau, **{"lr": LR, **options})


def random_rows(n=N, d=D, seed=0, dtype=torch.float64):
    return builders.random_rows(n, d, seed, dtype)


def random_tree(n, seed):
    """A tree in which every node hangs on an earlier one, with the nodes renamed at random."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(n)
    return Graph(n, [(int(names[rng.integers(0, j)]), int(names[j])) for j in range(1, n)])


# --- conserved ---


KEEP_THE_MEAN = [alg.DSGD(), alg.CombineWhileAdapt(), alg.D2(), alg.EXTRA(), alg.GradientTracking(), alg.LocalSGD()]


@pytest.mark.parametrize("algorithm", [*KEEP_THE_MEAN, alg.QuasiGlobalMomentum(0.0)], ids=str)
def test_the_mean_of_the_nodes_takes_the_step_of_sgd_with_the_mean_gradient(algorithm):
    """𝟏ᵀW = 𝟏ᵀ: mixing does not move the mean."""
    training = make(algorithm)
    for _ in range(STEPS):
        mean, G = training.X.mean(0).clone(), training.step().gradients
        torch.testing.assert_close(training.X.mean(0), mean - LR * G.mean(0), **CLOSE)


DIVIDE = [alg.EXTRA(), alg.GradientTracking(), alg.DecentLaM(), alg.QuasiGlobalMomentum(), alg.QuasiGlobalAdam()]


@pytest.mark.parametrize("algorithm", DIVIDE, ids=str)
def test_a_warm_up_from_0_mixes_and_divides_nothing_by_the_step_size(algorithm):
    training = make(algorithm, scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: float(t > 0)))
    X = training.X.copy_(random_rows()).clone()
    training.step()
    torch.testing.assert_close(training.X, torch.from_numpy(W.to_dense()).T @ X, **CLOSE)
    training.step()
    assert torch.isfinite(training.X).all()


# --- where two of them are the same ---
def run(training, steps=STEPS):
    found = []
    for _ in range(steps):
        training.step()
        found.append(training.X.clone())
    return torch.stack(found)


AT_HOME, FULL = MixingMatrix.from_dense(np.eye(N), GRAPH), (uniform(complete(N)), complete(N))
SAME = {  # what is the same as what; each with the options of both runs
    "push-sum with doubly stochastic weights": (make(alg.PushSum()), make(alg.DSGD())),
    "with momentum": (make(alg.PushSum(), momentum=0.9), make(alg.DSGD(), momentum=0.9)),
    "local SGD with one local step is all-reduce": (make(alg.LocalSGD()), make(alg.AllReduceSGD())),
    "full averaging by weights is local SGD": (make(alg.DSGD(), *FULL), make(alg.LocalSGD())),
    "full averaging, local steps": (make(alg.DSGD(), *FULL, tau=4), make(alg.LocalSGD(), tau=4)),
    "decoupled, updates at home": (make(alg.DecoupledDSGD(), Decoupled(W, AT_HOME)), make(alg.CombineWhileAdapt())),
    "combine then adapt: gradients are taken where D-SGD takes them": (make(alg.CombineThenAdapt()), make(alg.DSGD())),
    "CHOCO with everything sent and a full step": (make(alg.Choco(alg.TopK(1.0), 1.0)), make(alg.DSGD())),
    "DecentLaM without momentum": (make(alg.DecentLaM(0.0)), make(alg.DSGD())),
    # Both are linear filters of the gradients, and with a fixed W filters commute.
    "momentum tracking with fixed weights": (
        make(alg.MomentumTracking(0.7)),
        make(alg.GradientTracking(), momentum=0.7),
    ),
}
for mu, nesterov in itertools.product((0.0, 0.3, 0.95), (False, True)):
    without = alg.QuasiGlobalMomentum(beta=0.0, mu=mu, nesterov=nesterov)
    SAME[f"quasi-global without momentum, {mu}, {nesterov}"] = make(without), make(alg.DSGD())


@pytest.mark.parametrize("name", SAME)
def test_two_methods_are_the_same(name):
    found, expected = map(run, SAME[name])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


# --- which rows are mixed ---
ANNOUNCE = [alg.D2(), alg.EXTRA(), alg.ACiD(), alg.QuasiGlobalMomentum(), alg.QuasiGlobalMomentum(inner=alg.D2())]


@pytest.mark.parametrize("algorithm", ANNOUNCE, ids=str)
def test_the_announced_rows_from_which_aware_policies_choose_weights_are_mixed(algorithm, monkeypatch):
    training, sent = make(algorithm), []
    driver, mix, send = training.driver, training.driver.mix, training.network.mix
    watched = lambda rows, W, **options: sent.append(rows.clone()) or send(rows, W, **options)  # noqa: E731
    monkeypatch.setattr(training.network, "mix", watched)

    def compare(round, plan):
        announced = round.rows.clone()
        if not isinstance(algorithm, alg.EXTRA | alg.ACiD):  # of these the update is not mixed as it is
            torch.testing.assert_close(round.before - announced, round.update, **CLOSE)
        sent.clear()
        mix(round, plan)
        torch.testing.assert_close(sent[0], announced, **CLOSE)

    monkeypatch.setattr(driver, "mix", compare)
    for _ in range(4):
        training.step()


def test_channels_have_to_fit_the_algorithm():
    X, network = random_rows(), SimulatedNetwork(GRAPH)
    rule = "D-SGD mixes one thing; a policy with a second channel"
    refused(MixingError, rule, mixed, alg.DSGD(), X, X, Plan((W,), updates=(W,)), network)
    rule = r"needs a policy with two channels: Decoupled\(params=…, updates=…\)"
    refused(TrainingError, rule, mixed, alg.DecoupledDSGD(), X, X, Plan((W,)), network)


# --- bytes ---
ROW = D * 8
MESSAGES = W.messages * ROW


ONE_ROW = [alg.DSGD(), alg.CombineThenAdapt(), alg.CombineWhileAdapt(), alg.D2(), alg.EXTRA(), alg.DecentLaM()]
ONE_ROW += [alg.ACiD(), alg.QuasiGlobalMomentum(), alg.QuasiGlobalAdam()]
TO_ALL = 2 * (N - 1) * ROW  # an all-reduce
SENT = [
    *((algorithm, W, MESSAGES) for algorithm in ONE_ROW),
    (alg.DSGD(), Product([W, W]), 2 * MESSAGES),
    (alg.GradientTracking(), W, 2 * MESSAGES),
    (alg.MomentumTracking(), W, 2 * MESSAGES),
    (alg.DecoupledDSGD(), Decoupled(W, W), 2 * MESSAGES),
    (alg.PushSum(), W, W.messages * (ROW + 8)),  # and the weight
    (alg.RelaySGD(), Tree(random_tree(N, 0)), 2 * (N - 1) * (ROW + 8)),  # and the count
    *((algorithm, NoMixing(), TO_ALL) for algorithm in (alg.AllReduceSGD(), alg.LocalSGD())),
    (alg.DSGD(), Fixed("full-averaging"), TO_ALL),
]


@pytest.mark.parametrize(("algorithm", "policy", "sent"), SENT, ids=lambda value: type(value).__name__)
def test_what_a_step_sends(algorithm, policy, sent):
    training = make(algorithm, policy, complete(N) if isinstance(algorithm, alg.RelaySGD) else GRAPH)
    for t in range(3):
        training.step()
        mixings = t if algorithm.needs.early else t + 1  # at first W = I, where there are no weights yet
        assert training.network.traffic.parameters == mixings * sent
    assert training.network.traffic.sketches == 0


@pytest.mark.parametrize("algorithm", [alg.DSGD, alg.GradientTracking, alg.LocalSGD])
def test_local_steps_send_nothing(algorithm):
    training, sent = make(algorithm(), tau=4), []
    for _ in range(12):
        training.step()
        sent.append(training.network.traffic.parameters)
    assert sent == [k * sent[3] for k in (0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3)]
    assert sent[3] > 0


# --- exchange ---
@given(graph=graphs(1, 12))
def test_messages_arrive_in_the_order_of_their_receivers(graph):
    """Sent sorted by (sender, receiver), received sorted by (receiver, sender), each as it was."""
    arcs = sorted({*graph.edges, *(() if graph.directed else ((j, i) for i, j in graph.edges))})
    messages = torch.tensor([[100.0 * i + j] for i, j in arcs], dtype=torch.float64).reshape(-1, 1)
    network = SimulatedNetwork(graph)
    arrived = network.exchange(messages, graph).rows[:, 0].tolist()
    assert arrived == [100.0 * i + j for i, j in sorted(arcs, key=lambda arc: (arc[1], arc[0]))]
    assert network.traffic.parameters == len(arcs) * 8


@pytest.mark.parametrize("d", [1, LONG_ROW // 8 - 1, LONG_ROW // 8])
def test_an_average_is_counted_as_an_all_reduce_however_long_the_rows_and_however_it_is_asked_for(d):
    """Every node sends 2 (n − 1)/n rows, the fewest possible: small models stand for large ones."""
    rows, J = random_rows(d=d), uniform(complete(N))
    for act in (lambda network: network.average(rows), lambda network: network.mix(rows, J)[0]):
        network = SimulatedNetwork(ring(N), Links(Link(0.1, 1e6)))
        torch.testing.assert_close(act(network), rows.mean(0), **CLOSE)
        assert network.traffic.parameters == 2 * (N - 1) * d * 8
        asked = SimulatedNetwork(ring(N), network.links)
        asked.average(rows)
        assert network.traffic == asked.traffic  # the time as well


def test_lost_and_compressed_rows_go_along_arcs_also_with_equal_weights():
    rows, J = random_rows(d=LONG_ROW // 8), uniform(complete(N))
    lossy, compressed = FaultyNetwork(SimulatedNetwork(ring(N)), Faults()), SimulatedNetwork(ring(N))
    lossy.mix(rows, J)
    compressed.mix(rows, J, packing=alg.TopK(1 / 6)(rows, range(N), 0))
    assert lossy.traffic.parameters == N * (N - 1) * LONG_ROW
    assert compressed.traffic.parameters == N * (N - 1) * round(LONG_ROW / 8 / 6) * 12
