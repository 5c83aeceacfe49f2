"""Inputs that are read when they are needed: a task sees the same batches as if they were one tensor."""

import pytest
import torch
from torch import nn

from mixwise.data import Dataset, Splits, holdout, normalized, partition
from mixwise.errors import DataError, TrainingError
from mixwise.tasks import ModuleTask

NODES = 3


class Listed:
    """Samples over a tensor that write down what they are asked for."""

    kind = "rows of a list"

    def __init__(self, x):
        self.x, self.asked = x, []

    def __len__(self):
        return len(self.x)

    def take(self, indices, draws=None):
        self.asked.append(("take", indices.tolist(), draws))
        return self.x[indices]

    def subset(self, indices):
        return Listed(self.x[indices])

    def expect(self, indices, draws=None):
        self.asked.append(("expect", indices.tolist(), draws))


def data(x):
    return Dataset(x, torch.arange(len(x)) % 2, 2, "list", ("even", "odd"))


def task(x, **options):
    return ModuleTask(
        lambda: nn.Linear(5, 2), data(x), partition.iid(len(x), NODES, 0), batch=4, dtype=torch.float64, **options
    )


@pytest.fixture
def x():
    return torch.randn(30, 5, generator=torch.Generator().manual_seed(0))


def test_gradients_and_accuracies_are_those_of_the_tensor(x):
    torch.manual_seed(0)
    in_memory = task(x, gradients="loop", test=data(x), test_batch=7)
    torch.manual_seed(0)
    on_demand = task(Listed(x), test=data(Listed(x)), test_batch=7)
    X = in_memory.initial(range(NODES)) + torch.randn(NODES, 12, dtype=torch.float64)
    for step in (0, 1, 5):
        losses, G = (found.clone() for found in in_memory.losses_and_gradients(X, range(NODES), step))
        own_losses, own_G = on_demand.losses_and_gradients(X, range(NODES), step)
        assert torch.equal(losses, own_losses)
        assert torch.equal(G, own_G)
    assert in_memory.evaluate(X) == on_demand.evaluate(X)


def test_the_batch_of_the_next_step_is_announced_with_its_draws(x):
    samples = Listed(x)
    own = task(samples)
    X = own.initial(range(NODES))
    own.losses_and_gradients(X, range(NODES), 0)
    announced = [(at, draws) for what, at, draws in samples.asked if what == "expect"]
    samples.asked.clear()
    own.losses_and_gradients(X, range(NODES), 1)
    assert [(at, draws) for what, at, draws in samples.asked if what == "take"] == announced
    assert len({draws for _, draws in announced}) == NODES  # every node draws for itself


def test_every_test_sample_is_read_once_for_all_models(x):
    samples = Listed(x)
    own = task(x, test=data(samples), test_batch=7)
    own.evaluate(own.initial(range(NODES)))
    taken = [i for what, at, _ in samples.asked if what == "take" for i in at]
    assert taken == list(range(30))
    assert {draws for _, _, draws in samples.asked} == {None}
    assert [at for what, at, _ in samples.asked if what == "expect"][-1] == [28, 29]


def test_a_part_is_held_out_without_reading(x):
    samples = Listed(x)
    rest, validation = holdout(data(samples), 0.2, seed=1)
    expected_rest, expected = holdout(data(x), 0.2, seed=1)
    assert samples.asked == []
    assert torch.equal(validation.x.x, expected.x)
    assert torch.equal(rest.x.x, expected_rest.x)
    assert rest.class_names == ("even", "odd")


def test_what_needs_all_inputs_at_once_says_so(x):
    with pytest.raises(TrainingError, match=r"cannot run list, which is read piece by piece; take gradients = .loop"):
        task(Listed(x), gradients="stacked")
    with pytest.raises(DataError, match=r"list \(rows of a list\) is read piece by piece"):
        normalized(Splits(data(Listed(x)), data(Listed(x))))
    with pytest.raises(DataError, match=r"training data are .* of torch.float32 .*, test data rows of a list"):
        Splits(data(x), data(Listed(x)))
    with pytest.raises(DataError, match="x has shape \\(30, '…'\\), y \\(29,\\)"):
        Dataset(Listed(x), torch.zeros(29, dtype=torch.int64), 1)
    with pytest.raises(DataError, match="1 names for 2 classes"):
        Dataset(x, torch.zeros(30, dtype=torch.int64), 2, class_names=("a",))


def test_measuring_ends_at_the_loop(x):
    assert task(Listed(x), gradients="measure").gradients == "loop"
    assert task(Listed(x), gradients="auto").gradients == "loop"
