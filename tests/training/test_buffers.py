"""Buffers of modules, such as the statistics of BatchNorm, over nodes, evaluations, mixings and checkpoints."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mixwise.algorithms as alg
import mixwise.policies as pol
from builders import mixture_task, refused, sgd, simulated, stepped
from mixwise.data import gaussian_mixture
from mixwise.errors import TrainingError
from mixwise.experiments.build import prepare
from mixwise.graphs import Graph, chain, ring
from mixwise.mixing import metropolis_hastings, uniform_sender
from mixwise.models import seeded
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.round import Round
from mixwise.state import State
from plain_torch import trained
from planning import assert_runs_resume
from run_folders import recipe_run

NODES = 5
GRAPH = ring(NODES)
MH = metropolis_hastings(GRAPH)
TEST = gaussian_mixture(classes=4, dim=8, samples=200).test
NESTEROV = sgd(0.1, momentum=0.9, nesterov=True)
# One step adds a few rounding errors of size 1e-16, and BatchNorm divides by standard deviations of size 1.
CLOSE = {"rtol": 0, "atol": 1e-12}


def batch_norm():
    return seeded(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)), 0)


class Assigns(nn.Module):
    """Keeps a running mean by assignment, a counter, a shared buffer, and one that is not saved."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("center", torch.zeros(8))
        self.register_buffer("again", self.center)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        if self.training:
            self.center = 0.9 * self.center + 0.1 * x.mean(0).detach()
            self.calls = self.calls + 1
            self.scratch += 1
        return self.linear(x - self.center)


def make_task(module=batch_norm, **options):
    return mixture_task(module, NODES, **{"batch": 5, "dtype": torch.float64, **options})


def make_training(task, algorithm=None, policy=MH, graph=GRAPH):
    optimizer = sgd(0.1) if algorithm else NESTEROV  # some have a momentum of their own
    return simulated(policy, algorithm, graph, task=task, optimizer=optimizer)


def accuracy(module):
    with torch.no_grad():
        outputs = module.eval()(TEST.x.double())
    return float((outputs.argmax(1) == TEST.y).double().mean())


# --- local ---


@pytest.mark.parametrize(
    ("module", "buffers"), [(batch_norm, "local"), (batch_norm, "averaged"), (lambda: seeded(Assigns, 0), "local")]
)
def test_every_node_keeps_its_own_buffers_or_mixes_them_and_is_judged_with_them(module, buffers):
    task = make_task(module, buffers=buffers)
    training = stepped(make_training(task), 6)
    expected = trained(task, MH, lambda module: NESTEROV(module.parameters()), 6, buffers=buffers == "averaged")
    for i, module in enumerate(expected):
        mine = task.node_module(training.X, i)
        for (name, a), (_, b) in zip(mine.named_buffers(), module.named_buffers(), strict=True):
            torch.testing.assert_close(a, b, **CLOSE, msg=name)
    values = task.evaluate(training.X)
    each = [accuracy(module) for module in expected]
    assert values["accuracy"] == pytest.approx(np.mean(each), abs=1e-12)
    assert values["accuracy_worst"] == min(each)
    fresh = [accuracy(task.module_of(row)) for row in training.X]
    assert fresh != each  # the statistics a module starts with would not do


def test_the_averaged_model_has_the_mean_of_parameters_and_buffers():
    task = make_task()
    training = stepped(make_training(task), 4)
    modules = [task.node_module(training.X, i) for i in range(NODES)]
    average = task.average_module(training.X)
    for name, value in average.state_dict().items():
        same = torch.stack([module.state_dict()[name] for module in modules])
        torch.testing.assert_close(value, same.mean(0) if value.is_floating_point() else same[0], **CLOSE)
    assert task.evaluate(training.X)["accuracy_average_model"] == accuracy(average)


def test_the_template_and_other_runs_of_the_task_keep_their_buffers():
    task = make_task()
    before = copy.deepcopy(task.template.state_dict())
    a, b, alone = make_training(task), make_training(task), stepped(make_training(make_task()), 4)
    for _ in range(2):
        stepped(a, 2)
        b.step()
    assert all(torch.equal(value, before[name]) for name, value in task.template.state_dict().items())
    assert torch.equal(a.X, alone.X)
    mine, expected = task.node_module(a.X, 2), alone.task.node_module(alone.X, 2)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in mine.state_dict().items())
    assert task.node_module(b.X, 0).state_dict()["1.num_batches_tracked"] == 2
    assert task.evaluate(a.X) == alone.task.evaluate(alone.X)


def test_rows_that_are_computed_from_those_of_a_run_have_its_buffers():
    task = make_task()
    training = stepped(make_training(task), 1)
    assert task.evaluate(training.X.clone()) == task.evaluate(training.X)
    task.losses_and_gradients(2 * training.X, range(NODES), 1)
    assert task.node_module(training.X, 0).state_dict()["1.num_batches_tracked"] == 2


def test_modules_follow_rows_that_move_to_other_memory():
    task, still = make_task(), make_task()
    X, Y = task.initial(range(NODES)), still.initial(range(NODES))
    for t in range(3):
        losses, G = task.losses_and_gradients(X, range(NODES), t)
        expected, H = still.losses_and_gradients(Y, range(NODES), t)
        assert torch.equal(losses, expected)
        assert torch.equal(G, H)
        X = X - 0.1 * G
        Y -= 0.1 * H


def frozen_norm():
    module = batch_norm()
    module[1].requires_grad_(False).eval()
    return module


@pytest.mark.parametrize(("module", "batches"), [(frozen_norm, 0), (lambda: batch_norm().eval(), 2)])
def test_a_norm_in_eval_mode_stays_there_but_a_module_that_comes_in_eval_mode_is_trained(module, batches):
    training = stepped(make_training(make_task(module)), 2)
    assert training.task.node_module(training.X, 1).state_dict()["1.num_batches_tracked"] == batches


# --- averaged ---


def mixed_buffers(algorithm, policy, graph=GRAPH):
    """B after one step."""
    training = stepped(make_training(make_task(buffers="averaged"), algorithm, policy, graph), 1)
    return training.task.mixed_buffers.clone()


def test_buffers_are_mixed_averaged_or_pushed_as_the_parameters_are():
    local = stepped(make_training(make_task()), 1)  # the same for each node, whatever is mixed afterwards
    B = local.task._buffers(local.X).B.clone()
    assert float((B - B.mean(0)).abs().max()) > 1e-3
    weights = torch.from_numpy(MH.to_dense().T)
    for algorithm in (alg.DSGD(), alg.GradientTracking(), alg.QuasiGlobalMomentum()):
        torch.testing.assert_close(mixed_buffers(algorithm, MH), weights @ B, **CLOSE)
    early = mixed_buffers(alg.CombineWhileAdapt(), MH)  # its first mixing has no weights yet
    torch.testing.assert_close(early, B, **CLOSE)
    for algorithm in (alg.AllReduceSGD(), alg.LocalSGD(), alg.QuasiGlobalMomentum(inner=alg.LocalSGD())):
        averaged = mixed_buffers(algorithm, pol.NoMixing())
        torch.testing.assert_close(averaged, B.mean(0).expand_as(B), **CLOSE)
    sender = uniform_sender(Graph(NODES, [*GRAPH.edges, (0, 2), (0, 3)]))
    P = torch.from_numpy(sender.to_dense().T)
    pushed = mixed_buffers(alg.PushSum(), sender, sender.graph)
    torch.testing.assert_close(pushed, P @ B / P.sum(1, keepdim=True), **CLOSE)


def test_buffers_are_pushed_with_the_weights_of_their_nodes():
    """B⁺ = P (w B) / (P w): what all nodes have together, Σ w B, stays."""
    sender = uniform_sender(Graph(NODES, [*GRAPH.edges, (0, 2), (0, 3)]))
    P, w = sender.to_dense().T, np.linspace(0.4, 1.6, NODES)[:, None]
    B = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, before, X = State(rows={"mass": torch.from_numpy(w)}), B.numpy().copy(), torch.zeros(NODES, 2)
    alg.PushSum().mix(Round(0, X, X, X, B=B), Plan((sender,)), state, SimulatedNetwork(sender.graph))
    np.testing.assert_allclose(B.numpy(), P @ (w * before) / (P @ w), **CLOSE)


def test_relay_rejects_buffers_that_are_to_be_averaged():
    for algorithm in (alg.RelaySGD(), alg.QuasiGlobalMomentum(inner=alg.RelaySGD())):
        rule, task = "has no mixing weights for the nodes' buffers.*buffers: local", make_task(buffers="averaged")
        refused(TrainingError, rule, make_training, task, algorithm, pol.Tree(chain(NODES)))
    make_training(make_task(), alg.RelaySGD(), pol.Tree(chain(NODES))).step()


def test_local_buffers_and_modules_without_any_are_not_mixed():
    assert make_training(make_task()).task.mixed_buffers is None
    plain = make_task(lambda: nn.Linear(8, 4), buffers="averaged")
    assert make_training(plain).task.mixed_buffers is None


def test_an_unknown_policy_is_refused():
    refused(TrainingError, "buffers = 'mixed'; choose .local. or .averaged.", make_task, buffers="mixed")


# --- checkpoints ---


@pytest.mark.parametrize("module", [batch_norm, lambda: seeded(Assigns, 0)])
@pytest.mark.parametrize("buffers", ["local", "averaged"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(module, buffers):
    assert_runs_resume(lambda: make_training(make_task(module, buffers=buffers, dtype=torch.float32)), before=4)


def test_a_checkpoint_of_another_module_is_refused():
    task = make_task()
    task.initial(range(NODES))
    rows = task.state().rows
    mean = rows.pop("buffers.1.running_mean")
    for changes, message in (
        ({}, "buffer '1.running_mean' is missing"),
        ({"buffers.1.running_mean": mean, "buffers.new": mean}, "buffer 'new' is not in the module"),
        ({"buffers.1.running_mean": mean[:2]}, r"'1.running_mean' has shape \(2, 6\), expected \(5, 6\)"),
    ):
        refused(TrainingError, message, task.load_state, State(rows | changes))


# --- recipes ---


def normalized(classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))


@pytest.mark.parametrize("buffers", ["local", "averaged"])
def test_a_recipe_says_whether_buffers_are_mixed(buffers):
    model = f"task.model={{kind: '{normalized.__module__}:normalized'}}"
    training = prepare(recipe_run(f"task.buffers={buffers}", model, recipe="digits", variant="dsgd"), 0).start()
    assert (training.task.mixed_buffers is not None) == (buffers == "averaged")
