"""Checks of the installation: versions, threads, back ends, data sets, and a self-test of a few seconds."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import torch
import torch.distributed as dist
from packaging.requirements import Requirement

import mixwise as mw
from mixwise.network.loopback import TwoProcesses
from mixwise.seeding import generator
from mixwise.tasks.devices import REMEDY, broken_bfloat16


@dataclass(frozen=True)
class Finding:
    """One line of the report: its topic, whether the check passed (None if nothing was checked), and a remedy."""

    topic: str
    text: str
    ok: bool | None = None
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """All findings as they come; the self-test is last."""
    yield Finding("mixwise", f"{mw.__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    yield from _versions()
    yield _threads()
    yield _back_ends()
    yield from _bfloat16()
    yield _extras()
    yield from _data()
    yield from self_test()


# --- the environment ---
def _versions() -> Iterator[Finding]:
    required = [r for r in _requirements() if r.marker is None or r.marker.evaluate({"extra": ""})]
    versions = {needed.name: _version(needed.name) for needed in required}
    yield Finding("versions", ", ".join(f"{name} {found}" for name, found in versions.items() if found is not None))
    for needed in required:
        found, remedy = versions[needed.name], f"pip install '{needed}'"
        if found is None:
            yield Finding("versions", f"{needed.name} is not installed", False, remedy)
        elif not needed.specifier.contains(found, prereleases=True):
            text = f"{needed.name} {found} is installed; mixwise works with {needed.specifier}"
            yield Finding("versions", text, False, remedy)


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires("mixwise") or []]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _threads() -> Finding:
    used, limit = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS", "not set")
    return Finding("threads", f"torch uses {used} of {os.cpu_count()} processors; OMP_NUM_THREADS: {limit}")


def _back_ends() -> Finding:
    talks = dist.is_available()
    found = {"gloo": talks and dist.is_gloo_available(), "nccl": talks and dist.is_nccl_available()}
    found |= {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    remedy = "install a build of torch with torch.distributed and gloo, such as those of pytorch.org"
    return Finding("back ends", _listed(found), None if found["gloo"] else False, remedy)


def _bfloat16() -> Iterator[Finding]:
    if (killed := broken_bfloat16()) is not None:
        text = f"products kill a process on this CPU ({killed}): it announces AMX instructions that it does not execute"
        yield Finding("bfloat16", text, False, REMEDY)


def _extras() -> Finding:
    found = {}
    for extra in metadata.metadata("mixwise").get_all("Provides-Extra") or []:
        needed = [r.name for r in _requirements() if r.marker is not None and r.marker.evaluate({"extra": extra})]
        found[extra] = all(_version(name) is not None for name in needed if name != "mixwise")  # another extra
    hint = "" if all(found.values()) else " (pip install 'mixwise[NAME]')"
    return Finding("extras", _listed(found) + hint)


def _listed(found: dict[str, bool]) -> str:
    present = ", ".join(name for name, is_present in found.items() if is_present) or "none"
    absent = ", ".join(name for name, is_present in found.items() if not is_present)
    return f"{present}; not available: {absent}" if absent else present


def _data() -> Iterator[Finding]:
    root = mw.data.data_folder(None, "")
    source = "from $MIXWISE_DATA" if os.environ.get("MIXWISE_DATA") else "the default; set $MIXWISE_DATA to change it"
    if root.exists() and not (root.is_dir() and os.access(root, os.R_OK)):
        text = f"{root} ({source}) is not a readable folder"
        yield Finding("data", text, False, "set MIXWISE_DATA to a readable folder")
        return
    yield Finding("data", f"{root} ({source}); digits come with scikit-learn")
    for name in ("cifar10", "mnist", "fashion_mnist"):
        found = any((root / name).glob("*"))
        text = f"found in {root / name}" if found else "not downloaded yet; a recipe that needs it downloads it"
        yield Finding("data", f"{name}: {text}")


# --- the self-test ---
def self_test(timeout: float = 30.0) -> Iterator[Finding]:
    """Small computations with known results."""
    two = TwoProcesses(timeout)  # they start while the rest is tested
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the processors are busy, and the tasks are tiny
    tests: dict[str, tuple[Callable[[], str | None], str]] = {
        "solver": (_solver, "pip install --force-reinstall 'piqp>=0.6.4,<0.7'"),
        "spectral gap": (_gap, "pip install --force-reinstall clarabel scipy"),
        "sketch": (_sketch, "pip install --force-reinstall numpy torch"),
        "gossip": (_gossip, "pip install --force-reinstall torch"),
        "training": (_training, "pip install --force-reinstall torch"),
        "two processes": (two.wait, "allow programs to listen on 127.0.0.1, and unset GLOO_SOCKET_IFNAME"),
    }
    try:
        for name, (test, remedy) in tests.items():
            start = time.perf_counter()
            try:
                text = test() or "gossip between two processes over 127.0.0.1"
                yield Finding(name, f"{text}, {time.perf_counter() - start:.2f} s", True)
            except Exception as error:  # any error is a finding
                yield Finding(name, " ".join(f"{type(error).__name__}: {error}".split()), False, remedy)
    finally:
        torch.set_num_threads(threads)
        two.end()


def _solver() -> str:
    G = np.eye(3)[np.arange(12) % 3]  # three types of data along a ring: one gossip step can reach the mean everywhere
    left = mw.mixing.gradient_mixing_error(G, mw.minimize_gme(mw.mixing.gram_matrix(G), mw.graphs.ring(12)).W)
    _expect(left < 1e-8, f"the weights leave {left:.2g} of the disagreement, 0 is possible")
    return "optimized weights reach the global mean on a ring of 12"


def _gap() -> str:
    # The eigenvalues are 1 − wλ with λ from 1 to 4: the best w has 1 − w = 4w − 1.
    gap = mw.mixing.spectral_gap(mw.mixing.optimal_gap(mw.graphs.ring(6)))
    _expect(abs(gap - 0.4) < 1e-6, f"the best weights of a ring of 6 have a spectral gap of {gap:.6f}, not 0.4")
    return "the optimal spectral gap of a ring of 6 matches its formula"


def _sketch() -> str:
    rows = torch.randn(4, 2000, generator=generator(0, "doctor"), dtype=torch.float64)
    sketches = torch.stack([mw.sketch.CountSketch(100, seed=seed)(rows) for seed in range(30)])
    error = float(((sketches @ sketches.mT).mean(0) - rows @ rows.T).abs().max() / 2000)
    _expect(error < 0.15, f"inner products of sketches are off by {error:.1%}")
    return f"inner products are exact within {error:.1%}, averaged over 30 sketches"


def _gossip() -> str:
    graph = mw.graphs.ring(8)
    X = torch.arange(8.0, dtype=torch.float64)[:, None]
    network, W = mw.SimulatedNetwork(graph), mw.mixing.metropolis_hastings(graph)
    for _ in range(100):
        X = network.mix(X, W)
    error = float((X - 3.5).abs().max())
    _expect(error < 1e-6, f"after 100 gossip steps a node is {error:.2g} away from the mean")
    return "100 steps bring a ring of 8 to the mean"


def _training() -> str:
    data, graph = mw.data.gaussian_mixture(samples=500, seed=0), mw.graphs.ring(4)
    parts = mw.data.partition.by_label(data.train.y, graph.n, labels_per_node=3, seed=0)
    task = mw.tasks.ModuleTask(
        lambda: mw.models.seeded(lambda: mw.models.mlp([20, 16, 10]), 0), data.train, parts, batch=16, test=data.test,
        gradients="loop",  # torch.func is slow to import
    )  # fmt: skip
    records = mw.train(
        task, graph, mw.HeterogeneityAware(period=5),
        optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9), steps=20, evaluate_every=20,
    )  # fmt: skip
    losses = [record.values["loss"] for record in records]
    _expect(losses[-1] < losses[0], f"the loss went from {losses[0]:.3g} to {losses[-1]:.3g} in 20 steps")
    return f"20 steps on a small task, loss {losses[0]:.2f} to {losses[-1]:.2f}"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
