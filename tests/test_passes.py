"""A batch in pieces, products in bfloat16."""

import pytest
import torch
from torch import nn

from every_algorithm import NODES, small_task
from mixwise.errors import TrainingError
from mixwise.models import seeded
from mixwise.tasks import ModuleTask


def gradients(task: ModuleTask, step: int = 3):
    X = task.initial(range(NODES))
    losses, G = task.losses_and_gradients(X, range(NODES), step)
    return losses, G.clone()


def task_of(module, **options) -> ModuleTask:
    plain = small_task(5)
    return ModuleTask(lambda: seeded(module, 0), plain.data, plain.partition, batch=7, test=plain.data, **options)


def normed():
    return nn.Sequential(nn.Linear(30, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 2))


def batch_normed():
    return nn.Sequential(nn.Linear(30, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))


# --- a batch in pieces ---


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_a_batch_in_pieces_has_the_gradients_of_the_batch(pieces):
    """Also where the pieces are not equally large: 7 samples in 2 or 3."""
    losses, G = gradients(task_of(normed, dtype=torch.float64, gradients="loop"))
    apart, G_apart = gradients(task_of(normed, dtype=torch.float64, accumulate=pieces))
    torch.testing.assert_close(apart, losses, rtol=0, atol=1e-12)
    torch.testing.assert_close(G_apart, G, rtol=0, atol=1e-12)
    assert G.abs().max() > 1e-3


def test_pieces_that_are_not_those_of_the_batch():
    with pytest.raises(TrainingError, match=r"accumulate = 8 pieces of a batch of 7; take 1 to 7"):
        task_of(normed, accumulate=8)
    with pytest.raises(TrainingError, match=r"accumulate = 2 would take the statistics of the batch normalization '1'"):
        task_of(batch_normed, accumulate=2)

    def frozen_norm():
        module = batch_normed()
        module[1].eval()
        return module

    assert task_of(frozen_norm, accumulate=2).gradients == "loop"


# --- products in bfloat16 ---


def test_autocast_shortens_the_products_and_nothing_else():
    losses, G = gradients(task_of(normed))
    cast, G_cast = gradients(task_of(normed, autocast=torch.bfloat16))
    assert G_cast.dtype == torch.float32
    assert not torch.equal(G_cast, G)
    # 8 binary digits in every product: errors of a few in a hundred
    assert (G_cast - G).norm() < 0.05 * G.norm()
    torch.testing.assert_close(cast, losses, rtol=0.02, atol=0.02)
    _, G_both = gradients(task_of(normed, autocast=torch.bfloat16, accumulate=2))
    assert (G_both - G).norm() < 0.05 * G.norm()


def test_what_does_not_go_with_autocast():
    with pytest.raises(TrainingError, match=r"autocast = torch.float16 loses small gradients; take torch.bfloat16"):
        task_of(normed, autocast=torch.float16)
    with pytest.raises(TrainingError, match=r"not of torch.float64; drop one of the two"):
        task_of(normed, autocast=torch.bfloat16, dtype=torch.float64)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"autocast": torch.bfloat16}])
def test_stacked_passes_have_none_of_it(options):
    assert task_of(normed).gradients == "stacked"
    assert task_of(normed, **options).gradients == "loop"
    with pytest.raises(TrainingError, match=r'"stacked" cannot run with .*; take gradients = "loop"'):
        task_of(normed, gradients="stacked", **options)
