"""Rows: the parameters of a module are views of one row of X, their gradients of one row of G."""

import pytest
import torch
from torch import nn

from builders import refused
from mixwise.errors import TrainingError
from mixwise.models import seeded
from mixwise.tasks.rows import RowLayout
from small_net import Net


def by_dimension(name, parameter):
    return int(parameter.ndim < 2)


@pytest.fixture(params=[lambda name, parameter: 0, by_dimension], ids=["one group", "two groups"])
def bound(request):
    """A module with its layout, and other modules that are bound to rows of one X and one G that start as that one."""
    net, *modules = (seeded(Net, seed).double() for seed in range(4))
    layout = RowLayout(net, request.param)
    X = layout.flatten(net).repeat(3, 1)
    G = torch.zeros_like(X)
    for module, row, gradient in zip(modules, X, G, strict=True):
        layout.bind(module, row, gradient)
        module.frozen.load_state_dict(net.frozen.state_dict())  # it has no place in the row
    return net, layout, X, G, modules


def test_parameters_are_views_of_a_row(bound):
    net, layout, X, G, modules = bound
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
    assert torch.equal(layout.flatten(net), before[0])  # and so does the module that the rows were taken from


def test_frozen_parameters_have_no_place_and_tied_ones_have_one(bound):
    net, layout, X, _, modules = bound
    names = {name for name, _ in net.named_parameters() if not name.startswith("frozen")}  # a tied one comes once
    assert ({slot.name for slot in layout.slots}, layout.dim) == (names, 1 + 36 + 6 + 6 + 6 + 6 + 18 + 3)
    assert modules[0].again.weight is modules[0].first.weight
    X[0] = 0.0
    assert not modules[0].again.weight.any()
    assert (modules[0].scale.shape, modules[0].scale.item()) == ((), 0.0)
    assert dict(layout.named_views(X))["scale"].tolist() == [0.0, 2.0, 2.0]
    assert modules[0].frozen.weight.all()


def test_a_bound_module_is_the_one_that_its_row_was_taken_from(bound):
    net, layout, X, _, modules = bound
    assert torch.equal(layout.flatten(modules[1]), X[1])
    x = torch.randn(5, 6, dtype=torch.float64)
    assert torch.equal(modules[1](x), net(x))
    before, after = net.state_dict(), modules[1].state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [name for name, _ in modules[1].named_parameters()] == [name for name, _ in net.named_parameters()]


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


def test_modules_without_rows_are_refused():
    refused(TrainingError, "no parameter to train; let some", RowLayout, nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(TrainingError, match=r"'1.weight' has no shape yet; run a batch through"):
        RowLayout(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)))
