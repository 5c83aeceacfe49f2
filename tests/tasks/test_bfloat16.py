"""A CPU on which bfloat16 products kill the process is detected in a child process."""

import signal
from types import SimpleNamespace

import pytest
import torch

from mixwise import doctor
from mixwise.data import gaussian_mixture, partition
from mixwise.errors import TrainingError
from mixwise.models import logistic_regression
from mixwise.tasks import ModuleTask, devices

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


@pytest.fixture
def children(monkeypatch):
    """The children that were started on a CPU that announces AMX; each ends with the `code` set on this list."""

    class Children(list):
        code = 0

    started = Children()

    def run(command, **options):
        started.append(command)
        return SimpleNamespace(returncode=started.code)

    monkeypatch.setattr(devices, "_announces_amx", lambda: True)
    monkeypatch.setattr(devices.subprocess, "run", run)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    devices.broken_bfloat16.cache_clear()
    yield started
    devices.broken_bfloat16.cache_clear()


def task(**options):
    data = gaussian_mixture(samples=40, seed=0)
    parts = partition.iid(len(data.train.y), 2, seed=0)
    return ModuleTask(lambda: logistic_regression(20, 10), data.train, parts, batch=4, **options)


def test_a_product_that_kills_is_an_error_with_a_remedy(children):
    children.code = -signal.SIGILL
    with pytest.raises(TrainingError, match=rf"autocast = torch.bfloat16: .* \(SIGILL\), .*; {REMEDY}") as error:
        task(autocast=torch.bfloat16)
    assert "\n" not in str(error.value)
    (finding,) = doctor._bfloat16()
    assert (finding.topic, finding.ok) == ("bfloat16", False)
    assert "SIGILL" in finding.text
    assert finding.remedy.startswith(REMEDY)
    assert len(children) == 1  # tried once


@pytest.mark.parametrize(
    ("isa", "tried"), [("AVX512_CORE_BF16", False), ("avx2", False), ("", True), ("AVX512_CORE_AMX", True), ("?", True)]
)
def test_it_is_tried_only_where_onednn_may_use_amx(children, monkeypatch, isa, tried):
    task()  # without autocast
    assert children == []
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    for _ in range(2):  # once
        task(autocast=torch.bfloat16)
    assert list(doctor._bfloat16()) == []
    assert len(children) == tried
    devices.broken_bfloat16.cache_clear()
    monkeypatch.setattr(devices, "_announces_amx", lambda: False)  # another processor
    assert devices.broken_bfloat16() is None
    assert len(children) == tried


def test_a_child_killed_by_a_signal_is_noticed(monkeypatch):
    monkeypatch.setattr(devices, "_announces_amx", lambda: True)
    monkeypatch.setattr(devices, "_PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    devices.broken_bfloat16.cache_clear()
    assert devices.broken_bfloat16() == "SIGILL"
    monkeypatch.setattr(devices, "_PRODUCT", "raise SystemExit(1)")  # died of something else
    devices.broken_bfloat16.cache_clear()
    assert devices.broken_bfloat16() is None
    devices.broken_bfloat16.cache_clear()


def test_the_product_that_is_tried_is_a_bfloat16_product_of_torch():
    names = {}
    exec(devices._PRODUCT, names)
    assert names["a"].dtype == torch.bfloat16
