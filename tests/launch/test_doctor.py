"""`mixwise doctor` checks the installation, finds what is broken, and names a remedy."""

import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from builders import refused
from mixwise import __version__, doctor
from mixwise.cli import run_command
from mixwise.cli.doctor_command import show_links
from mixwise.errors import NetworkError
from mixwise.graphs import chain
from mixwise.mixing import metropolis_hastings
from mixwise.network import DistributedNetwork, Link, Links, SimulatedNetwork, loopback
from mixwise.network.links import measured_links
from mixwise.network.loopback import TwoProcesses
from process_pool import in_processes, run_in_processes
from programs import Program


@pytest.fixture
def alone(monkeypatch):
    """Without the two processes, which one test starts for all."""
    monkeypatch.setattr(doctor, "TwoProcesses", lambda timeout: SimpleNamespace(wait=lambda: None, end=lambda: None))


@in_processes
def test_two_processes_mix(monkeypatch):
    monkeypatch.setattr(loopback, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Program}))
    processes = TwoProcesses(timeout=250)
    processes.wait()
    assert all(process.poll() == 0 for process in processes._processes)


@in_processes
def test_two_processes_that_are_not_done_in_time_are_ended():
    start = time.monotonic()
    processes = TwoProcesses(timeout=0.05)
    refused(NetworkError, r"process 0 was not done after 0\.05 s", processes.wait)
    assert time.monotonic() - start < 100  # not the minutes that a process that hangs may take
    assert all(process.poll() is not None for process in processes._processes)


@in_processes
def test_the_last_words_of_a_process_that_fails_are_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    refused(NetworkError, "process 0 ended with exit code 1: no output", TwoProcesses(timeout=250).wait)


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


# --- the network ---
def test_simulated_links_are_measured_exactly():
    """A message takes latency + bytes / bandwidth; on a chain of three, each link is alone in its color."""
    links = Links(Link(0.02, 1e6), {(1, 2): Link(0.3, 2e4)})
    network = SimulatedNetwork(chain(3), links)
    found = measured_links(network, clock=lambda: network.traffic.seconds)
    for edge, expected in {(0, 1): links.usual, (1, 2): links.edges[1, 2]}.items():
        assert found[edge].latency == pytest.approx(expected.latency, rel=1e-6)
        assert found[edge].bandwidth == pytest.approx(expected.bandwidth, rel=1e-6)


def measured(rank, world):
    with mock.patch.multiple("mixwise.network.links", _LONGEST=2**18, _MOST=9):
        return measured_links(DistributedNetwork(chain(world)))


@in_processes
def test_processes_agree_on_the_links_between_them():
    results = run_in_processes(3, measured)
    assert results[0].keys() == {(0, 1), (1, 2)}
    assert all(found == results[0] for found in results)
    assert all(0 <= link.latency < 60 and link.bandwidth > 1e3 for link in results[0].values())


def test_the_forecast_is_that_of_mixwise_plan_for_the_slowest_link(mixwise, capfd):
    show_links({(0, 1): Link(0.001, 5e8), (0, 2): Link(0.0502, 1.25e6), (1, 2): Link(0.002, 4e8)}, "ring:3", 50_000)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[3:] for line in lines[1:4]] == [
        ["1", "4000", "0.0014"],
        ["50.2", "10", "0.21"],
        ["2", "3200", "0.0025"],
    ]
    assert "median: 2 ms, 3200 Mbit/s" in lines
    assert any(line.startswith("slowest link: ranks 0 and 2, 50.2 ms, 10 Mbit/s") for line in lines)
    (at,) = [index for index, line in enumerate(lines) if line.startswith("mixwise plan ")]
    expected = mixwise(*lines[at].split()[1:])
    assert [line.split() for line in lines[at + 1 :]] == [line.split() for line in expected.stdout.splitlines()]


def test_processes_for_the_network_are_started_as_by_launch(mixwise, monkeypatch):
    lines = []
    monkeypatch.setattr(run_command.os, "execv", lambda program, line: lines.append(line))
    mixwise("doctor", "--network", "--nproc-per-node", "4", "--graph", "chain:4")
    (line,) = lines
    assert "--nproc-per-node=4" in line
    assert line[-6:] == ["-m", "mixwise", "doctor", "--network", "--model-size=1000000", "--graph=chain:4"]
    for words, message in {
        ("--nproc-per-node", "2", "--graph", "ring:3"): "--graph ring:3 has 3 nodes, but there are 2 processes",
        ("--nproc-per-node", "3", "--graph", "directed-ring:3"): "doctor --network",
        (): "between processes, and there is one; start some here with --nproc-per-node 4",
    }.items():
        done = mixwise("doctor", "--network", *words)
        assert (done.returncode, len(lines)) == (2, 1)
        assert message in done.stderr
