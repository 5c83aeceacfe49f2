"""Module tasks: the same iterates as plain PyTorch, in a loop and stacked; random layers, data and metrics."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from builders import cases, random_rows, refused, sgd, simulated
from mixwise.data import Dataset, Fields, Partition, gaussian_mixture, partition
from mixwise.errors import DataError, TrainingError
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import EvoNormS0, mlp, seeded, small_cnn
from mixwise.tasks import ModuleTask
from mixwise.tasks.gradients import faster
from mixwise.training import records
from plain_torch import backward
from small_net import Tied

NODES = 6
# Two ways to the same sum of a few hundred numbers of size 1 differ by about 1e-15; 20 steps let that grow.
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(params=["copied", "written directly"])
def directly(request, monkeypatch):
    """Gradients of linear layers are copied to their place, or, as those of large ones are, written there."""
    if request.param == "written directly":
        monkeypatch.setattr("mixwise.tasks.stacked.LARGE", 0)


def points():
    return gaussian_mixture(classes=4, dim=8, samples=300)


def images(samples=60):
    stream = torch.Generator().manual_seed(0)
    return Dataset(torch.rand(samples, 3, 16, 16, generator=stream), torch.arange(samples) % 10, 10, "images")


def dense():
    return seeded(lambda: mlp((8, 16, 4)), 0)


def small_conv():
    """Two convolutions with GroupNorm; small enough to be stacked in a test."""
    convs = [nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2)]
    return nn.Sequential(*convs, nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))


def evo_conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=3), EvoNormS0(4, 2), nn.Flatten(), nn.Linear(100, 10))


def with_dropout():
    return seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 4)), 0)


def with_batch_norm():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def make_task(module=dense, data=None, nodes=NODES, **options):
    data = points().train if data is None else data
    parts = options.pop("parts", None) or partition.dirichlet(data.y, nodes, 0.5, seed=0)
    return ModuleTask(module, data, parts, **{"batch": 5, "dtype": torch.float64, **options})


def make_training(task):
    graph = ring(task.nodes)
    optimizer = sgd(0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    return simulated(metropolis_hastings(graph), graph=graph, task=task, optimizer=optimizer)


def somewhere(task, nodes=NODES):
    """Rows around the start, and no two alike."""
    return task.initial(range(nodes)) + 0.3 * random_rows(nodes, task.layout.dim, seed=3)


def assert_gradients_of_plain_pytorch(task, X, losses, G, step):
    """Compare with an ordinary module and an ordinary backward pass for each node."""
    for node, row in enumerate(X):
        module = task.module_of(row).train()
        torch.testing.assert_close(losses[node], backward(module, task, node, step), **CLOSE)
        for name, view in task.layout.named_views(G[node]):
            expected = module.get_parameter(name).grad
            torch.testing.assert_close(view, torch.zeros_like(view) if expected is None else expected, **CLOSE)


# --- loop and stacked ---


class OneLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)


class Sequences(nn.Module):
    """Linear layers on three axes, with and without bias, one used twice and beyond, one never."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3, bias=False)
        self.twice = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(12, 4)
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = torch.tanh(self.first(x.view(-1, 4, 2)))
        h = self.twice(torch.tanh(self.twice(h))) + self.twice.weight.sum(0)
        return self.last(h.flatten(1)) + self.shift


def chain():
    """Linear layers on three axes, one without bias, in a chain inside of a chain; softmax is not element-wise."""
    inner = nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, 3, bias=False), nn.Softmax(1), nn.Linear(3, 3))
    return nn.Sequential(inner, nn.GELU(), nn.Flatten(), nn.Linear(12, 4))


def frozen_chain():
    """A chain whose first layer is not trained."""
    module = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    return module


def hooked_chain():
    """A chain in which a hook changes what a linear layer returns."""
    module = nn.Sequential(nn.Linear(8, 4))
    module[0].register_forward_hook(lambda layer, inputs, y: 2 * y.softmax(-1))
    return module


def embedded():
    return nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 4))


@pytest.mark.usefixtures("directly")
@pytest.mark.parametrize("gradients", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("module", "data"),
    [
        *((module, None) for module in (dense, Tied, Sequences, chain, frozen_chain, hooked_chain)),
        *((module, images()) for module in (small_conv, evo_conv)),
        (small_conv, Dataset((images().x * 255).round().byte(), images().y, 10)),
        (embedded, Dataset(random_rows(60, 2).mul(3).long().remainder(7), torch.arange(60) % 4, 4)),
    ],
)
def test_gradients_are_those_of_plain_pytorch(module, data, gradients):
    """Also where a node has fewer samples than a batch, or a single one; bytes are shares of 255, integers stay."""
    data = points().train if data is None else data
    parts = Partition(tuple(np.split(np.arange(len(data)), [1, 4, 20, 31, 43])))
    task = make_task(lambda: seeded(module, 0), data, parts=parts, gradients=gradients)
    X = somewhere(task)
    for step in (0, 7):
        assert_gradients_of_plain_pytorch(task, X, *task.losses_and_gradients(X, range(NODES), step), step)


# --- the choice between loop and stacked ---


@pytest.mark.parametrize(("module", "named"), [(with_batch_norm, "norm"), (with_dropout, "random layer")])
def test_layers_that_cannot_be_stacked_are_named(module, named):
    refused(TrainingError, rf"{named}.*'1'.*gradients = \"loop\"", make_task, module, gradients="stacked")
    assert make_task(module, gradients="measure").gradients == "loop"
    make_training(make_task(module, gradients="loop")).step()


class Penalty(OneLayer):
    """Takes gradients itself."""

    def forward(self, x):
        y = self.linear(x)
        (slope,) = torch.autograd.grad(y.sum(), [self.linear.weight], create_graph=True)
        return y + slope.square().sum()


class Hidden(OneLayer):
    """Is random outside of layers."""

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), training=self.training)


class CountsRows(OneLayer):
    """Has a buffer that stacking would not keep."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.tensor(0.0))

    def forward(self, x):
        self.rows += len(x)
        return self.linear(x)


@pytest.mark.usefixtures("directly")
@cases("module, message", (Penalty, ""), (Hidden, "random"), (CountsRows, "buffer 'rows' changes in training"))
def test_what_no_layer_shows_is_an_error_of_the_first_step_and_measured_as_a_loop(module, message):
    stacked, measured = (make_training(make_task(module, gradients=way)) for way in ("stacked", "measure"))
    refused(TrainingError, rf"{message}.*use gradients = \"loop\"", stacked.step)
    measured.step()
    assert measured.task.gradients == "loop"
    if module is CountsRows:  # rows of the step alone, not of the measurement
        assert measured.task.node_module(measured.X, 0).rows == measured.task.batch


@cases(
    "layer, chosen",
    (nn.LayerNorm(8), "stacked"),
    (nn.BatchNorm1d(8), "loop"),
    (nn.BatchNorm1d(8, affine=False), "loop"),
    (nn.Dropout(), "loop"),
    (nn.RReLU(), "loop"),
    (nn.PReLU(), "loop"),
)
def test_auto_stacks_dense_layers_and_nothing_else(layer, chosen):
    assert make_task(lambda: nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 4))).gradients == chosen
    assert make_task(small_cnn).gradients == "loop"


# --- measuring loop and stacked ---


def test_measuring_changes_nothing_of_the_run():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    measured, plain = make_training(make_task(gradients="measure")), make_training(make_task(gradients="loop"))
    assert measured.task.gradients == "measure"
    for _ in range(3):
        a, b = measured.step(), plain.step()
        torch.testing.assert_close(a.gradients, b.gradients, **CLOSE)
    assert measured.task.gradients in ("loop", "stacked")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("way", ["loop", "stacked"])
def test_a_resumed_run_keeps_the_way_that_was_measured(way, monkeypatch):
    monkeypatch.setattr("mixwise.tasks.module.faster", lambda *args: way)
    first = make_training(make_task(gradients="measure"))
    first.step()
    monkeypatch.setattr("mixwise.tasks.module.faster", lambda *args: pytest.fail("measured again"))
    second = make_training(make_task(gradients="measure"))
    second.load_state(first.state())
    second.step()
    assert second.task.gradients == way


def test_the_faster_way_wins(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mixwise.tasks.gradients.time.perf_counter", lambda: clock[0])

    def takes(seconds):
        def way(nodes, step, inputs):
            clock[0] += seconds
            return torch.zeros(1)

        return way

    assert faster(takes(2), takes(1), [0], 0, None) == "stacked"
    assert faster(takes(1), takes(2), [0], 0, None) == "loop"


# --- random layers ---


def add_noise(x, stream):
    return x + torch.randn(x.shape, generator=stream)


@pytest.mark.parametrize("options", [{"module": with_dropout}, {"augment": add_noise}], ids=["dropout", "augmentation"])
def test_what_is_random_depends_on_seed_node_and_step_alone(options):
    def gradients(nodes, step=4, seed=0):
        torch.manual_seed(sum(nodes) + step)  # the global generator has no say, and is left alone
        before, task = torch.get_rng_state(), make_task(**options, seed=seed, test=points().test)
        X = task.initial(range(NODES))
        task.evaluate(X)
        G = task.losses_and_gradients(X[nodes].clone(), nodes, step)[1].clone()
        assert torch.equal(torch.get_rng_state(), before)
        return G

    together = gradients([*range(NODES)])
    for nodes in ([3], [5, 0], [4, 3, 2, 1], [*range(NODES)]):
        assert torch.equal(gradients(nodes), together[nodes])
    for change in ({"seed": 1}, {"step": 5}):
        assert not torch.equal(gradients([*range(NODES)], **change), together)


def test_masks_differ_between_nodes_and_between_steps():
    # One sample, the same on every node and at every step: only the masks can make a difference.
    data = Dataset(torch.ones(NODES, 8), torch.zeros(NODES, dtype=torch.int64), 4)
    task = make_task(with_dropout, data, parts=partition.iid(NODES, NODES, 0), batch=1)
    X = task.initial(range(NODES))
    seen = [row for step in range(3) for row in task.losses_and_gradients(X, range(NODES), step)[1].clone()]
    assert len({tuple(row.tolist()) for row in seen}) == len(seen)


# --- metrics ---


def test_evaluation_against_a_direct_computation():
    test = points().test
    task = make_task(test=test)
    X = somewhere(task)

    def accuracy(row):
        W1, b1, W2, b2 = torch.split(row, [16 * 8, 16, 4 * 16, 4])
        hidden = torch.relu(test.x.double() @ W1.view(16, 8).T + b1)
        return float(((hidden @ W2.view(4, 16).T + b2).argmax(1) == test.y).double().mean())

    each = np.array([accuracy(row) for row in X])
    assert len(set(each)) > 1
    figures = task.evaluate(X)
    assert figures == pytest.approx(
        {"accuracy": each.mean(), "accuracy_worst": each.min(), "accuracy_spread": each.std(),
         "accuracy_average_model": accuracy(X.mean(0))}, abs=1e-12,
    )  # fmt: skip
    assert json.dumps(figures)  # plain numbers
    pieces = make_task(test=test, test_batch=7)  # the last of them shorter
    assert pieces.accuracy(task.module_of(X[0]), test) == each[0]


def test_evaluations_before_the_last_one_may_use_a_part_of_the_test_set():
    test = points().test
    task = make_task(test=test, interim_samples=7)
    at = torch.cat([torch.nonzero((test.x == x).all(1))[0] for x in task.interim_test.x])
    assert len(set(at.tolist())) == 7
    assert torch.equal(make_task(test=test, interim_samples=7, seed=1).interim_test.x, test.x[at])  # for all seeds

    def accuracies(**options):
        training = make_training(make_task(test=test, **options))
        return {record.step: record.values.get("accuracy") for record in records(training, 6, 2, 2)}

    part, whole = accuracies(interim_samples=7), accuracies()
    assert part[5] == whole[5]
    interim = make_training(make_task(test=test.subset(at)))
    expected = [record.values["accuracy"] for record in records(interim, 6, 2, 2)]
    assert [part[1], part[3]] == expected[:2] != [whole[1], whole[3]]
    refused(DataError, "interim_samples = 61; .* from 1 to 60", make_task, test=test, interim_samples=61)


@cases(
    "call, message",
    (lambda: make_task().evaluate(torch.zeros(NODES, 1)), "no test set .*test="),
    (lambda: make_task(gradients="fast"), "'fast'; choose .auto., .measure., .loop. or .stacked."),
)
def test_invalid_arguments_are_rejected(call, message):
    refused(TrainingError, message, call)


# --- targets that are numbers ---
def regression(targets=1, **options):
    """Linear regression, of float32 data in float64."""
    x, A = random_rows(80, 3, dtype=torch.float32), random_rows(3, targets, seed=1, dtype=torch.float32)
    data = Dataset(x, x @ A, name="linear")
    make = lambda: nn.Linear(3, targets, bias=False)  # noqa: E731
    return make_task(lambda: seeded(make, 0), data, parts=partition.iid(80, 4, seed=0), batch=20, test=data, **options)


@pytest.mark.parametrize("gradients", ["loop", "stacked"])
def test_regression_has_the_gradients_of_least_squares_and_reports_its_error(gradients):
    """∂/∂W ‖x Wᵀ − y‖² / (b k) = 2 (x Wᵀ − y)ᵀ x / (b k), with k targets."""
    task = regression(targets=2, gradients=gradients)
    X = somewhere(task, 4)
    losses, G = task.losses_and_gradients(X, range(4), 0)
    for i in range(4):
        x, y = task.inputs.one(i, 0)
        residual = x @ X[i].view(2, 3).T - y
        assert losses[i] == pytest.approx(float(residual.square().mean()), rel=1e-12)
        torch.testing.assert_close(G[i].view(2, 3), residual.T @ x / 20, rtol=1e-12, atol=1e-14)
    assert task.label_counts is None
    residuals = torch.einsum("sk,itk->ist", task.test.x.double(), X.view(4, 2, 3)) - task.test.y.double()
    assert task.evaluate(X)["test_loss"] == pytest.approx(float(residuals.square().mean()), rel=1e-12)


def test_metrics_of_ones_own_are_means_over_samples_and_know_what_is_worse():
    """The test set of 80 is evaluated in pieces of 30, 30 and 20."""

    def gap(outputs, y):
        return (outputs - y).abs().mean()

    metrics = {"score": lambda outputs, y: -gap(outputs, y), "gap": gap}
    task = regression(metrics=metrics, test_batch=30)
    X = task.initial(range(4)) * torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    gaps = [float((task.test.x.double() @ row[:, None] - task.test.y.double()).abs().mean()) for row in X]
    found = task.evaluate(X)
    assert (found["gap"], found["gap_worst"]) == pytest.approx((np.mean(gaps), max(gaps)), rel=1e-9)
    assert (found["score"], found["score_worst"]) == pytest.approx((-np.mean(gaps), -max(gaps)), rel=1e-9)


def test_outputs_that_would_be_broadcast_against_the_targets_are_refused():
    data = Dataset(torch.randn(8, 3), torch.randn(8))
    task = ModuleTask(lambda: nn.Linear(3, 1), data, partition.iid(8, 2, seed=0), batch=4, gradients="loop")
    X = task.initial([0, 1])
    refused(TrainingError, r"outputs \(4, 1\), targets \(4,\)", task.losses_and_gradients, X, [0, 1], 0)


# --- several inputs ---
class Sum(nn.Module):
    """A linear layer for each input: those with these keys, or two parts of one tensor."""

    def __init__(self, *keys):
        super().__init__()
        self.keys, self.near, self.far = keys, nn.Linear(3, 1), nn.Linear(2, 1)

    def forward(self, inputs):
        near, far = (inputs[key] for key in self.keys) if self.keys else inputs.split([3, 2], 1)
        return self.near(near) + self.far(far)


@cases("keys", ("near", "far"), (0, 1))
@pytest.mark.parametrize("accumulate", [1, 3])
def test_several_inputs_are_the_same_as_one_joined_input(keys, accumulate):
    near, far = random_rows(40, 3), random_rows(40, 2, seed=1)
    named = dict(zip(keys, (near, far), strict=True))
    found = []
    for x, used in ((Fields(named if keys[0] == "near" else (near, far)), keys), (torch.cat([near, far], 1), ())):
        data = Dataset(x, near.sum(1, keepdim=True)).subset(range(39, 1, -1))
        task = make_task(
            lambda used=used: seeded(lambda: Sum(*used), 0), data, parts=partition.iid(38, 4, seed=0), batch=7,
            test=data, gradients="loop", accumulate=accumulate,
        )  # fmt: skip
        X = task.initial(range(4))
        found.append((*task.losses_and_gradients(X, range(4), 2), task.evaluate(X)["test_loss"]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-12, atol=1e-13)


def test_inputs_of_different_lengths_are_refused():
    refused(DataError, r"inputs of \[3, 2\] samples", Fields, (torch.zeros(3), torch.zeros(2)))
