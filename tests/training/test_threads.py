"""The number of threads follows the size of the work, is given back, recorded, and never more than torch's own."""

import json

import pytest
import torch
from torch import nn

import mixwise as mw
from builders import sgd
from mixwise.data import Dataset, partition
from mixwise.errors import TrainingError
from mixwise.tasks.pass_flops import pass_flops
from mixwise.training.threads import FLOPS_PER_THREAD, suitable_threads


def task(width, nodes=4, batch=8, **options):
    generator = torch.Generator().manual_seed(0)
    data = Dataset(torch.randn(64, width, generator=generator), torch.arange(64) % 3, 3)
    model = lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))  # noqa: E731
    parts = partition.iid(64, nodes, seed=0)
    return mw.tasks.ModuleTask(model, data, parts, test=data, batch=batch, **options)


@pytest.fixture
def four(monkeypatch):
    """Torch uses four threads, and the environment does not say how many it may use."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("gradients", "together"), [("loop", 1), ("stacked", 4)])
def test_the_flops_of_linear_layers_are_counted(gradients, together):
    expected = 3 * 2 * together * 8 * (20 * 20 + 20 * 3)  # forward and backward, multiply and add, batches of 8
    assert pass_flops(task(20, gradients=gradients), 4) == expected


def test_small_work_is_done_by_one_thread_and_large_work_by_all(four):
    small, large = task(20), task(1600, gradients="loop")
    assert suitable_threads(small, small.initial(range(4))) == 1
    assert pass_flops(large, 4) > 2 * FLOPS_PER_THREAD
    assert suitable_threads(large, large.initial(range(4))) == 4


def test_threads_are_recorded_and_given_back_between_records(four):
    seen, run = [], mw.train(task(20), "ring:4", optimizer=sgd(0.1), steps=3)
    for record in run:
        seen.append(torch.get_num_threads())
        assert record.threads == 1
        assert json.loads(record.timings_to_json())["threads"] == 1
    assert seen == [4, 4, 4]
    assert torch.get_num_threads() == 4


def test_threads_are_given_back_after_an_error(four):
    with pytest.raises(TrainingError):
        mw.train(task(20), "ring:4", optimizer=sgd(1e30), steps=50).last  # noqa: B018
    assert torch.get_num_threads() == 4


def test_an_explicit_number_of_threads_stays(four, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    small = task(20)
    assert suitable_threads(small, small.initial(range(4))) == 4


def test_work_that_is_not_known_keeps_the_threads_of_torch(four):
    class Own:
        """A task of the user."""

    assert suitable_threads(Own(), torch.zeros(4, 10)) == 4
    assert suitable_threads(mw.tasks.random_quadratics(4), torch.zeros(4, 10)) == 1


def test_a_model_that_needs_values_is_counted_on_its_device():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x):
            return self.layer(x) * (1 if float(x.detach().sum()) >= 0 else 2)

    data = Dataset(torch.randn(8, 20), torch.arange(8) % 3, 3)
    made = mw.tasks.ModuleTask(Counts, data, partition.iid(8, 2, seed=0), batch=4, gradients="loop")
    assert pass_flops(made, 2) == 3 * 2 * 4 * 20 * 3
