"""A batch in pieces; products in bfloat16, and a CPU on which they kill the process, detected in a child process."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from builders import refused
from every_algorithm import NODES, small_task
from mixwise import doctor
from mixwise.errors import TrainingError
from mixwise.models import seeded
from mixwise.tasks import ModuleTask, devices


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


def test_options_that_would_give_other_gradients_are_rejected():
    for message, module, options in (
        ("accumulate = 8 pieces of a batch of 7; use 1 to 7", normed, {"accumulate": 8}),
        ("accumulate = 2 would change the statistics of the batch normalization '1'", batch_normed, {"accumulate": 2}),
        ("autocast = torch.float16 loses small gradients; use torch.bfloat16", normed, {"autocast": torch.float16}),
        ("not of torch.float64; drop one", normed, {"autocast": torch.bfloat16, "dtype": torch.float64}),
    ):
        refused(TrainingError, message, task_of, module, **options)
    frozen_norm = batch_normed()
    frozen_norm[1].eval()
    assert task_of(lambda: frozen_norm, accumulate=2).gradients == "loop"


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


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"autocast": torch.bfloat16}])
def test_pieces_and_autocast_cannot_be_stacked(options):
    assert (task_of(normed).gradients, task_of(normed, **options).gradients) == ("stacked", "loop")
    with pytest.raises(TrainingError, match=r'"stacked" cannot run with .*; use gradients = "loop"'):
        task_of(normed, gradients="stacked", **options)


# --- a CPU that announces AMX and cannot execute it ---
REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


@pytest.fixture
def announced(monkeypatch):
    """A CPU that announces AMX, of which nothing is known yet."""
    monkeypatch.setattr(devices, "_announces_amx", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    devices.broken_bfloat16.cache_clear()
    yield
    devices.broken_bfloat16.cache_clear()


def test_a_product_that_kills_is_an_error_with_a_remedy(announced, monkeypatch):
    monkeypatch.setattr(devices, "_PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    message = rf"autocast = torch.bfloat16: .* \(SIGILL\), .*; {REMEDY}"
    refused(TrainingError, message, task_of, normed, autocast=torch.bfloat16)
    (finding,) = doctor._bfloat16()
    assert (finding.topic, finding.ok) == ("bfloat16", False)
    assert "SIGILL" in finding.text
    assert finding.remedy.startswith(REMEDY)
    devices.broken_bfloat16.cache_clear()
    monkeypatch.setattr(devices, "_PRODUCT", "raise SystemExit(1)")  # died of something else
    assert devices.broken_bfloat16() is None


@pytest.mark.parametrize(
    ("isa", "tried"), [("AVX512_CORE_BF16", False), ("avx2", False), ("", True), ("AVX512_CORE_AMX", True), ("?", True)]
)
def test_it_is_tried_only_where_onednn_may_use_amx(announced, monkeypatch, isa, tried):
    child = Mock(return_value=SimpleNamespace(returncode=0))
    monkeypatch.setattr(devices.subprocess, "run", child)
    task_of(normed)  # without autocast
    child.assert_not_called()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    for _ in range(2):  # once
        task_of(normed, autocast=torch.bfloat16)
    assert (list(doctor._bfloat16()), child.call_count) == ([], tried)
    devices.broken_bfloat16.cache_clear()
    monkeypatch.setattr(devices, "_announces_amx", lambda: False)  # another processor
    assert devices.broken_bfloat16() is None
    assert child.call_count == tried


def test_the_product_that_is_tried_is_a_bfloat16_product_of_torch():
    names = {}
    exec(devices._PRODUCT, names)
    assert names["a"].dtype == torch.bfloat16


# --- many nodes ---


def test_blocks_of_nodes_have_the_losses_gradients_and_accuracies_of_all_at_once(monkeypatch):
    """Blocks of 3 of 8 nodes, the last of which is shorter; also with rows that have moved."""
    whole, blocks = (task_of(normed, dtype=torch.float64) for _ in range(2))
    monkeypatch.setattr(type(blocks), "nodes_at_once", 3)
    X = blocks.initial(range(NODES)) + 0.1 * torch.randn(NODES, blocks.layout.dim, dtype=torch.float64)
    found, accuracies = blocks.losses_and_gradients(X, range(NODES), 3), blocks.evaluate(X)
    moved = blocks.losses_and_gradients(X + 1, range(NODES), 3)[0].clone()
    monkeypatch.setattr(type(blocks), "nodes_at_once", NODES)
    losses, G = whole.losses_and_gradients(X, range(NODES), 3)
    torch.testing.assert_close(found[0], losses, rtol=0, atol=1e-12)
    assert accuracies == whole.evaluate(X)
    again = blocks.losses_and_gradients(X, range(NODES), 3)
    torch.testing.assert_close(again[1], G, rtol=0, atol=1e-12)
    torch.testing.assert_close(moved, whole.losses_and_gradients(X + 1, range(NODES), 3)[0], rtol=0, atol=1e-12)
