"""A batch in pieces, products in bfloat16, rows in bfloat16."""

import pytest
import torch
from torch import nn

from every_algorithm import GRAPH, NODES, small_task, start, weights
from mixwise.algorithms import D2, DSGD
from mixwise.errors import TrainingError
from mixwise.models import seeded
from mixwise.network import SimulatedNetwork
from mixwise.network.rounded import RoundedNetwork
from mixwise.policies import HeterogeneityAware
from mixwise.tasks import ModuleTask
from mixwise.train import Training
from mixwise.train.checkpoint import load_checkpoint, save_checkpoint


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


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"autocast": torch.bfloat16}, {"param_dtype": torch.bfloat16}])
def test_stacked_passes_have_none_of_it(options):
    assert task_of(normed).gradients == "stacked"
    assert task_of(normed, **options).gradients == "loop"
    with pytest.raises(TrainingError, match=r'"stacked" cannot run with .*; take gradients = "loop"'):
        task_of(normed, gradients="stacked", **options)


# --- rows in bfloat16 ---


def run(task, steps, lr=0.05, **options) -> Training:
    make = lambda blocks: torch.optim.Adam(blocks, lr=lr)  # noqa: E731
    training = Training(task, SimulatedNetwork(GRAPH), HeterogeneityAware(2), DSGD(), make, **options)
    for _ in range(steps):
        training.step()
    return training


def test_gradients_of_rows_in_bfloat16_are_computed_in_float32():
    short, plain = task_of(normed, param_dtype=torch.bfloat16), task_of(normed, gradients="loop")
    X = short.initial(range(NODES))
    assert X.dtype == torch.bfloat16
    losses, G = short.losses_and_gradients(X, range(NODES), 0)
    exact, G_exact = plain.losses_and_gradients(X.float(), range(NODES), 0)
    assert torch.equal(losses, exact)
    assert torch.equal(G, G_exact.to(torch.bfloat16))


def test_rows_in_bfloat16_learn_with_steps_below_their_precision():
    """Steps of 2e-5 on weights of about 0.1, whose digits are 5e-4 apart: to the nearest, nothing would move."""
    steps, lr = 60, 2e-5
    long = run(task_of(normed, gradients="loop"), steps, lr)
    short = run(task_of(normed, param_dtype=torch.bfloat16), steps, lr)
    first = long.task.initial(range(NODES))
    moved, followed = long.X - first, short.X.float() - first
    # The movement itself, and noise that has nothing to do with it.
    slope = float((moved * followed).sum() / moved.square().sum())
    assert slope == pytest.approx(1, abs=0.15)
    assert not torch.equal(short.X[0], first[0].to(torch.bfloat16))
    values = short.task.evaluate(short.X)
    assert 0 <= values["accuracy_worst"] <= values["accuracy"] <= 1


def test_a_run_in_bfloat16_is_the_same_every_time_and_after_a_checkpoint(tmp_path):
    task = lambda: task_of(batch_normed, param_dtype=torch.bfloat16)  # noqa: E731
    straight, first = run(task(), 6), run(task(), 3)
    save_checkpoint(first, tmp_path)
    again = run(task(), 0)
    load_checkpoint(again, tmp_path)
    for _ in range(3):
        again.step()
    assert torch.equal(again.X, straight.X)
    assert not torch.equal(straight.X, first.X)
    assert straight.network.traffic.parameters == 2 * run(task_of(batch_normed), 6).network.traffic.parameters / 4


def test_mixing_in_bfloat16_keeps_the_mean_of_the_nodes():
    m, d = NODES, 20_000
    rows = torch.ones(m, d)
    rows[0] += 2**-7  # one digit
    network = RoundedNetwork(SimulatedNetwork(GRAPH), 0)
    network.step = 0
    W = weights().W
    mixed = network.mix(rows.to(torch.bfloat16), W)
    expected = torch.from_numpy(W.to_dense().T).float() @ rows
    # Of 20,000 draws with probability 1/3 or less the mean is within 5 standard deviations of 1/300.
    assert (mixed.float().mean(1) - expected.mean(1)).abs().max() < 5 * 2**-7 / 290
    again = network.mix(rows.to(torch.bfloat16), W)
    assert not torch.equal(again, mixed)  # the second round of a step draws anew
    network.step = 0
    assert torch.equal(network.mix(rows.to(torch.bfloat16), W), mixed)


def test_what_bfloat16_cannot_hold():
    with pytest.raises(TrainingError, match=r"D2 keeps small differences between rows, which torch.bfloat16"):
        Training(
            task_of(normed, param_dtype=torch.bfloat16), SimulatedNetwork(GRAPH), weights(), D2(),
            lambda blocks: torch.optim.SGD(blocks, lr=0.1),
        )  # fmt: skip
    with pytest.raises(TrainingError, match=r"param_dtype = torch.float16 .*too small for torch.float16"):
        task_of(normed, param_dtype=torch.float16)
    with pytest.raises(TrainingError, match=r"goes with dtype = torch.float32"):
        task_of(normed, param_dtype=torch.bfloat16, dtype=torch.float64)
    assert start("dadam", task_of(normed, param_dtype=torch.bfloat16)).X.dtype == torch.bfloat16
