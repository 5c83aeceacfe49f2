"""An optimizer's step taken row by row is the step, whatever the optimizer and whichever rows come together."""

import pytest
import torch

from mixwise.training.optimizers import fuse_where_safe, step_rows
from test_optimizers import SETTINGS

COLUMNS = [(0, 5), (5, 12)]
ALL = [(name, options) for name, settings in SETTINGS.items() for options in settings]


def rows(m, dtype, seed=0):
    return torch.randn(m, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Rows:
    """Rows with two groups of columns and an optimizer of their own."""

    def __init__(self, X, name, options):
        self.X = X
        self.blocks = [torch.nn.Parameter(X[:, first:last]) for first, last in COLUMNS]
        groups = [{"params": [block], "weight_decay": 0.1 * i} for i, block in enumerate(self.blocks)]
        self.optimizer = fuse_where_safe(getattr(torch.optim, name)(groups, **options), row_by_row=True)

    def step(self, G):
        step_rows(self.optimizer, self.blocks, COLUMNS, self.X, G)


@pytest.mark.numerics
@pytest.mark.parametrize(("name", "options"), ALL)
def test_it_is_the_step_of_all_rows_at_once(name, options):
    X, at_once = rows(4, torch.float64), rows(4, torch.float64)
    by_row = Rows(X, name, options)
    whole = [torch.nn.Parameter(at_once[:, first:last].clone()) for first, last in COLUMNS]
    groups = [{"params": [block], "weight_decay": 0.1 * i} for i, block in enumerate(whole)]
    optimizer = getattr(torch.optim, name)(groups, **options)
    for t in range(1, 6):
        G = rows(4, torch.float64, seed=t)
        by_row.step(G)
        for block, (first, last) in zip(whole, COLUMNS, strict=True):
            block.grad = G[:, first:last].clone()
        optimizer.step()
        torch.testing.assert_close(X, torch.cat([block.detach() for block in whole], 1), rtol=0, atol=1e-14)
    # What is remembered has the form that it always had: a checkpoint does not know how steps were taken.
    ours, theirs = by_row.optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for index, entries in theirs.items():
        assert ours[index].keys() == entries.keys()
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                assert ours[index][key].shape == value.shape
                torch.testing.assert_close(ours[index][key].double(), value.double(), rtol=0, atol=1e-14)
            else:
                assert ours[index][key] == value


@pytest.mark.numerics
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_row_does_not_know_how_many_others_there_are(name):
    """In float32 the fused kernels do, where they take all rows at once."""
    options = SETTINGS[name][-1]
    many, alone = rows(5, torch.float32), rows(5, torch.float32)[3:4].clone()
    together, single = Rows(many, name, options), Rows(alone, name, options)
    for t in range(1, 5):
        G = rows(5, torch.float32, seed=t)
        together.step(G)
        single.step(G[3:4].clone())
    assert torch.equal(many[3:4], alone)
    assert together.optimizer.param_groups[0]["fused"]
