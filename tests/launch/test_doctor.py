"""`mixwise doctor` checks the installation, finds what is broken, and names a remedy."""

import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import refused
from mixwise import __version__, doctor
from mixwise.errors import NetworkError
from mixwise.graphs import chain
from mixwise.mixing import metropolis_hastings
from mixwise.network import loopback
from mixwise.network.loopback import TwoProcesses
from process_pool import in_processes
from programs import Program


@pytest.fixture
def alone(monkeypatch):
    """Without the two processes, which one test starts for all."""
    monkeypatch.setattr(doctor, "TwoProcesses", lambda timeout: SimpleNamespace(wait=lambda: None, end=lambda: None))


@in_processes
def test_two_processes_mix(monkeypatch):
    monkeypatch.setattr(loopback, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Program}))
    processes = TwoProcesses(timeout=60)
    processes.wait()
    assert all(process.poll() == 0 for process in processes._processes)


@in_processes
def test_two_processes_that_are_not_done_in_time_are_ended():
    start = time.monotonic()
    processes = TwoProcesses(timeout=0.05)
    refused(NetworkError, r"process 0 was not done after 0\.05 s", processes.wait)
    assert time.monotonic() - start < 10
    assert all(process.poll() is not None for process in processes._processes)


@in_processes
def test_the_last_words_of_a_process_that_fails_are_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    refused(NetworkError, "process 0 ended with exit code 1: no output", TwoProcesses(timeout=30).wait)


def test_all_checks_pass_here(alone, mixwise):
    done = mixwise("doctor")
    assert done.returncode == 0
    assert __version__ in done.stdout
    assert f"torch {metadata.version('torch')}" in done.stdout
    for name in ("threads", "back ends", "gloo", "extras", "cifar10", "fashion_mnist", "digits"):
        assert name in done.stdout
    for part in ("solver", "spectral gap", "sketch", "gossip", "training", "two processes"):
        assert f"{part:<14}ok: " in done.stdout
    assert done.stdout.endswith("All checks passed.\n")


def test_a_broken_part_is_named_with_a_remedy_and_the_rest_is_still_tested(alone, monkeypatch, mixwise):
    def broken(*args, **options):
        raise RuntimeError("the solver library\nis not there")

    monkeypatch.setattr(doctor.mw, "minimize_gme", broken)
    done = mixwise("doctor")
    assert done.returncode == 1
    assert "FAILED: RuntimeError: the solver library is not there" in done.stdout
    assert "remedy: pip install --force-reinstall 'piqp" in done.stdout
    assert f"{'training':<14}ok: " in done.stdout
    assert done.stderr == "error: 1 check failed\n"


def test_wrong_weights_are_found(alone, monkeypatch):
    wrong = SimpleNamespace(W=metropolis_hastings(chain(12)))
    monkeypatch.setattr(doctor.mw, "minimize_gme", lambda Gamma, graph: wrong)
    failed = [finding for finding in doctor.self_test() if finding.ok is False]
    assert [finding.topic for finding in failed] == ["solver"]


def test_versions_that_do_not_fit_and_packages_that_mixwise_needs_are_failures(monkeypatch):
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    real = metadata.version

    def version(name):
        if name in ("piqp", "cvxpy"):  # of these, mixwise needs the first
            raise metadata.PackageNotFoundError(name)
        return "2.0.1" if name == "torch" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: pyproject["project"]["dependencies"])
    failed = {finding.text: finding.remedy for finding in doctor._versions() if finding.ok is False}
    (old,) = [text for text in failed if text.startswith("torch 2.0.1 is installed")]
    assert failed.keys() == {old, "piqp is not installed"}
    assert failed[old].startswith("pip install 'torch")
    assert failed["piqp is not installed"].startswith("pip install 'piqp")


def test_where_data_would_be_read_from(monkeypatch, tmp_path):
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path))
    (tmp_path / "cifar10" / "cifar-10-batches-bin").mkdir(parents=True)
    lines = [finding.text for finding in doctor._data()]
    assert lines[0].startswith(f"{tmp_path} (from $MIXWISE_DATA)")
    assert lines[1] == f"cifar10: found in {tmp_path / 'cifar10'}"
    assert lines[2].startswith("mnist: not downloaded yet")
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("MIXWISE_DATA", str(file))
    (finding,) = doctor._data()
    assert finding.ok is False
    assert "MIXWISE_DATA" in finding.remedy
