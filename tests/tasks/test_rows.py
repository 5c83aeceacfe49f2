"""Rows: the parameters of a module are views of one row of X, their gradients of one row of G."""

import copy

import pytest
import torch
from torch import nn

from builders import refused
from mixwise.errors import TrainingError
from mixwise.tasks.rows import RowLayout


class Tied(nn.Module):
    """An output layer that shares its weight with the embedding, a frozen layer, a single number, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.LayerNorm(3)
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight
        self.gain = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.gain * self.output(self.norm(self.frozen(self.embedding(x))))


def by_dimension(name, parameter):
    return int(parameter.ndim < 2)


@pytest.fixture
def tied():
    torch.manual_seed(0)
    return Tied().double()


def bound(module, layout, nodes=3):
    """Copies of a module, all bound to rows of one X and one G."""
    X, G = layout.flatten(module).repeat(nodes, 1), torch.zeros(nodes, layout.dim, dtype=torch.float64)
    modules = [copy.deepcopy(module) for _ in range(nodes)]
    for i, one in enumerate(modules):
        layout.bind(one, X[i], G[i])
    return X, G, modules


def test_parameters_are_views_of_a_row(tied):
    layout = RowLayout(tied)
    X, G, modules = bound(tied, layout)
    for i, module in enumerate(modules):
        named = dict(module.named_parameters())
        for slot in layout.slots:
            assert named[slot.name].data_ptr() == X[i, slot.start].data_ptr()
            assert named[slot.name].grad.data_ptr() == G[i, slot.start].data_ptr()
    before = X.clone()
    with torch.no_grad():
        modules[2].norm.weight.fill_(7)
    assert (dict(layout.named_views(X))["norm.weight"][2] == 7).all()
    assert torch.equal(X[:2], before[:2])  # other rows stay


def test_frozen_parameters_have_no_place_and_tied_ones_have_one(tied):
    layout = RowLayout(tied)
    names = ["gain", "embedding.weight", "norm.weight", "norm.bias", "output.bias"]
    assert ([slot.name for slot in layout.slots], layout.dim) == (names, 1 + 15 + 3 + 3 + 5)
    X, _, modules = bound(tied, layout)
    assert modules[0].output.weight is modules[0].embedding.weight
    X[0, :16] = 0.0
    assert not modules[0].output.weight.any()
    assert (modules[0].gain.shape, modules[0].gain.item()) == ((), 0.0)
    assert dict(layout.named_views(X))["gain"].tolist() == [0.0, 3.0, 3.0]
    assert torch.equal(modules[0].frozen.weight, tied.frozen.weight)


def test_groups_are_blocks_of_columns_in_the_order_of_their_numbers():
    module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 4))
    layout = RowLayout(module, by_dimension)
    # Weights first, then biases and the norm; inside a group the module's own order.
    names = ["0.weight", "2.weight", "0.bias", "1.weight", "1.bias", "2.bias"]
    assert [slot.name for slot in layout.slots] == names
    assert layout.groups == ((0, 6 + 8), (14, 14 + 2 + 2 + 2 + 4))
    # Numbers with gaps, and a first parameter that is not in the first group.
    other = RowLayout(module, lambda name, p: {"0": 9, "1": -2, "2": 4}[name[0]])
    assert [slot.name[0] for slot in other.slots] == ["1", "1", "2", "2", "0", "0"]
    assert other.groups == ((0, 4), (4, 16), (16, 24))


def test_flatten_then_bind_gives_the_same_module(tied):
    for group_of in (lambda name, p: 0, by_dimension):
        layout = RowLayout(tied, group_of)
        torch.manual_seed(1)
        other = Tied().double()
        other.frozen.load_state_dict(tied.frozen.state_dict())  # it has no place in the row
        row = layout.flatten(tied)
        assert row.untyped_storage().data_ptr() != tied.norm.weight.untyped_storage().data_ptr()  # a copy
        layout.bind(other, row, torch.zeros_like(row))
        assert torch.equal(layout.flatten(other), row)
        x = torch.arange(5)
        assert torch.equal(other(x), tied(x))


def test_the_state_dict_has_the_keys_and_values_it_always_had(tied):
    layout = RowLayout(tied)
    _, _, modules = bound(tied, layout)
    before, after = tied.state_dict(), modules[0].state_dict()
    assert list(after) == list(before)
    for name in before:
        assert torch.equal(after[name], before[name]), name
    assert [name for name, _ in modules[0].named_parameters()] == [name for name, _ in tied.named_parameters()]
    Tied().double().load_state_dict(after)  # strict


def test_modules_without_rows_are_refused():
    refused(TrainingError, "no parameter to train; let some", RowLayout, nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(TrainingError, match=r"'1.weight' has no shape yet; run a batch through"):
        RowLayout(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)))
