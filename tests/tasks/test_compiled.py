"""Compiled passes: the same results up to rounding, the same bits again, one compilation for all nodes."""

import logging
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from builders import refused, sgd, simulated
from mixwise.data import Dataset, partition
from mixwise.errors import TrainingError
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import EvoNormS0, seeded
from mixwise.tasks import ModuleTask, compiled
from mixwise.tasks.pass_memory import pass_bytes
from planning import assert_runs_resume

NODES = 3

pytestmark = [
    pytest.mark.xdist_group("compiled"),  # the first test takes long, and the others use what it has compiled
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
    # torch's own: of its imports, of the forks of its compiler processes
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def images(samples=60):
    stream = torch.Generator().manual_seed(0)
    return Dataset(torch.rand(samples, 3, 8, 8, generator=stream), torch.arange(samples) % 10, 10, "images")


def convolutions():
    """A convolution, EvoNorm, a batch norm, whose buffers change, and dropout."""
    layers = nn.Conv2d(3, 4, 3), EvoNormS0(4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)
    return nn.Sequential(*layers)


def task(compile=True, **options):
    data = images()
    parts = partition.iid(len(data), NODES, seed=0)
    return ModuleTask(
        lambda: seeded(convolutions, 0), data, parts, batch=6, test=data, test_batch=25, compile=compile, **options
    )


def training(**options):
    optimizer = sgd(0.05, momentum=0.9, nesterov=True)
    return simulated(metropolis_hastings(ring(NODES)), graph=ring(NODES), task=task(**options), optimizer=optimizer)


def test_losses_gradients_buffers_and_metrics_agree_with_plain_torch_and_all_nodes_share_one_compilation():
    """float32 has 24 bits, and sums of some hundred numbers lose a few; over ten steps the difference grows."""
    counters.clear()
    runs = [training(compile=compile) for compile in (True, False)]
    for _ in range(10):
        steps = [run.step() for run in runs]
        torch.testing.assert_close(*(step.losses for step in steps), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(*(step.gradients for step in steps), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*(run.X for run in runs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*(run.task.state().rows["buffers.2.running_mean"] for run in runs))
    compiled_run, plain = (run.task.evaluate(run.X) for run in runs)
    assert compiled_run == pytest.approx(plain, abs=2 / 60)  # a sample or two of 60, at the border of two classes
    assert runs[0].task.local.compiler.active
    assert counters["stats"]["unique_graphs"] == 2  # a pass with its gradients, and one of the evaluation


def test_a_compiled_run_resumes_bit_for_bit():
    assert_runs_resume(training, 2, 3)


def test_a_pass_is_measured_without_compiling():
    assert pass_bytes(task(), NODES) == pass_bytes(task(compile=False), NODES) > 0


def test_without_a_compiler_a_message_says_so_and_the_results_are_those_of_plain_torch(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("No working C++ compiler found.\nmore")

    monkeypatch.setattr(compiled, "_compiled", lambda function: fail)
    with caplog.at_level(logging.WARNING):
        first, second = training(), training(compile=False)
        for _ in range(2):
            assert torch.equal(first.step().gradients, second.step().gradients)
    assert first.task.evaluate(first.X) == second.task.evaluate(second.X)
    (message,) = caplog.messages
    assert message == (
        "compile: true: torch.compile failed (No working C++ compiler found); computing without it, which is slower"
    )


def test_an_error_of_the_module_is_reported_as_without_compiling(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda function: function)
    data = images()
    wrong = ModuleTask(lambda: nn.Linear(7, 10), data, partition.iid(60, NODES, seed=0), compile=True)
    X = wrong.initial(range(NODES))
    refused(TrainingError, "cannot take a batch", wrong.losses_and_gradients, X, range(NODES), 0)


def test_compiled_passes_are_those_of_single_nodes():
    module, parts = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), partition.iid(60, NODES, seed=0)
    linear = {"module": module, "data": images(), "partition": parts}
    assert ModuleTask(**linear).gradients == "stacked"
    assert ModuleTask(**linear, compile=True).gradients == "loop"
    refused(
        TrainingError,
        "stacked.* cannot run with compile = True",
        lambda: ModuleTask(**linear, compile=True, gradients="stacked"),
    )


@pytest.mark.parametrize(("numbers", "size"), [(64, 1000), (768, 341), (3072, 100)])
def test_so_many_samples_are_evaluated_at_once_that_activations_stay_in_the_cache(numbers, size):
    data = Dataset(torch.zeros(9, numbers), torch.zeros(9, dtype=torch.int64), 2)
    assert ModuleTask(lambda: nn.Linear(numbers, 2), data, [range(9)], test=data).test_batch == size
