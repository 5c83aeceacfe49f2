"""Inputs that are read on demand: a task sees the same batches as if they were one tensor."""

import pytest
import torch
from torch import nn

from builders import random_rows, refused
from mixwise.data import Dataset, Samples, Splits, holdout, normalized, partition
from mixwise.errors import DataError, TrainingError
from mixwise.tasks import ModuleTask

NODES = 3


class Listed(Samples):
    """Samples over a tensor that record which batches are requested."""

    kind = "rows of a list"

    def __init__(self, x):
        self.x, self.taken, self.streams = x, [], 0

    def __len__(self):
        return len(self.x)

    def take(self, indices, draws=None):
        self.taken.append((indices.tolist(), draws))
        return self.x[indices]

    def subset(self, indices):
        return Listed(self.x[indices])

    def stream(self, requests):
        self.streams += 1
        return super().stream(requests)


def data(x):
    return Dataset(x, torch.arange(len(x)) % 2, 2, "list", ("even", "odd"))


def task(x, **options):
    parts = partition.iid(len(x), NODES, 0)
    return ModuleTask(lambda: nn.Linear(5, 2), data(x), parts, batch=4, dtype=torch.float64, **options)


@pytest.fixture
def x():
    return random_rows(30, 5, dtype=torch.float32)


def test_gradients_and_accuracies_are_those_of_the_tensor(x):
    in_memory = task(x, gradients="loop", test=data(x), test_batch=7)
    on_demand = task(Listed(x), test=data(Listed(x)), test_batch=7)
    X = random_rows(NODES, 12)
    for step in (0, 1, 5):
        losses, G = (found.clone() for found in in_memory.losses_and_gradients(X, range(NODES), step))
        own_losses, own_G = on_demand.losses_and_gradients(X, range(NODES), step)
        assert torch.equal(losses, own_losses)
        assert torch.equal(G, own_G)
    assert in_memory.evaluate(X) == on_demand.evaluate(X)


def test_consecutive_steps_are_one_stream_of_the_batches_of_each_step(x):
    samples, again = Listed(x), Listed(x)
    own, restarted = task(samples), task(again)
    X = own.initial(range(NODES))
    for step in (0, 1, 2):
        own.losses_and_gradients(X, range(NODES), step)
        task(again).losses_and_gradients(X, range(NODES), step)  # a task of its own for each step
    assert samples.taken == again.taken
    assert len({draws for _, draws in samples.taken}) == 3 * NODES  # of each node and step
    assert (samples.streams, again.streams) == (1, 3)
    for nodes, step in ((range(NODES), 7), ([1], 8), ([1], 8)):  # not what the stream would yield next
        own.losses_and_gradients(X[: len(nodes)], nodes, step)
        restarted.losses_and_gradients(X[: len(nodes)], nodes, step)
    assert (samples.taken[-NODES - 2 :], samples.streams) == (again.taken[-NODES - 2 :], 4)


def test_a_stream_that_failed_is_not_continued(x):
    class Broken(Listed):
        def take(self, indices, draws=None):
            if len(self.taken) == 1:
                self.taken.append(None)
                raise DataError("broken")
            return super().take(indices, draws)

    samples = Broken(x)
    own = task(samples)
    X = own.initial(range(NODES))
    refused(DataError, "broken", own.losses_and_gradients, X, range(NODES), 0)
    own.losses_and_gradients(X, range(NODES), 0)
    assert samples.taken[2] == samples.taken[0]


def test_every_test_sample_is_read_once_for_all_models(x):
    samples = Listed(x)
    own = task(x, test=data(samples), test_batch=7)
    own.evaluate(own.initial(range(NODES)))
    assert samples.taken == [(list(range(30))[start : start + 7], None) for start in range(0, 30, 7)]
    assert samples.streams == 1


def test_a_part_is_held_out_without_reading(x):
    samples = Listed(x)
    rest, validation = holdout(data(samples), 0.2, seed=1)
    expected_rest, expected = holdout(data(x), 0.2, seed=1)
    assert samples.taken == []
    assert torch.equal(validation.x.x, expected.x)
    assert torch.equal(rest.x.x, expected_rest.x)
    assert rest.class_names == ("even", "odd")


def test_operations_on_all_inputs_are_rejected(x):
    assert task(Listed(x), gradients="measure").gradients == task(Listed(x), gradients="auto").gradients == "loop"
    own, labels = data(Listed(x)), torch.zeros(30, dtype=torch.int64)
    message = r"cannot run list, .* piece by piece; use gradients = .loop"
    refused(TrainingError, message, task, Listed(x), gradients="stacked")
    refused(DataError, r"list \(rows of a list\) is read on demand", normalized, Splits(own, own))
    refused(DataError, "training data: .* of torch.float32 .*, test data: rows of a list", Splits, data(x), own)
    refused(DataError, r"x \(30, '…'\), y \(29,\)", Dataset, Listed(x), labels[:29], 1)
    refused(DataError, "1 names for 2 classes", Dataset, x, labels, 2, class_names=("a",))
