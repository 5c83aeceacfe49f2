"""What is here and whether it works: versions, threads, back ends, data sets, and a self-test of some seconds."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import torch
from packaging.requirements import Requirement

from mixwise import __version__
from mixwise.algorithms import DSGD
from mixwise.data import data_folder, gaussian_mixture, partition
from mixwise.data.cifar10 import LAYOUTS
from mixwise.data.mnist import FILES, local_file
from mixwise.graphs import ring
from mixwise.mixing import (
    fastest_mixing,
    gradient_mixing_error,
    gram_matrix,
    metropolis_hastings,
    minimize_gme,
    spectral_gap,
)
from mixwise.models import mlp, seeded
from mixwise.network import SimulatedNetwork
from mixwise.network.loopback import TwoProcesses, back_ends
from mixwise.policies import HeterogeneityAware
from mixwise.seeding import generator
from mixwise.sketch import CountSketch
from mixwise.tasks import ModuleTask
from mixwise.train import Training

_SHOWN = ("torch", "numpy", "scipy", "networkx", "piqp", "clarabel", "safetensors", "pydantic", "matplotlib")


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is well (None: nothing to judge), and what to do if it is not."""

    topic: str
    text: str
    ok: bool | None = None
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """All of them, as they are found; the self-test comes last."""
    yield Finding("mixwise", f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    yield from _versions()
    yield _threads()
    yield _back_ends()
    yield from _extras()
    yield from _data()
    yield from self_test()


# --- what is here ---
def _versions() -> Iterator[Finding]:
    yield Finding("versions", ", ".join(f"{name} {metadata.version(name)}" for name in filter(_is_installed, _SHOWN)))
    for line in metadata.requires("mixwise") or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{needed}'"
        try:
            there = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield Finding("versions", f"{needed.name} is not installed", False, remedy)
            continue
        if not needed.specifier.contains(there, prereleases=True):
            rule = f"{needed.name} {there} is installed; mixwise works with {needed.specifier}"
            yield Finding("versions", rule, False, remedy)


def _threads() -> Finding:
    asked = os.environ.get("OMP_NUM_THREADS")
    text = f"torch uses {torch.get_num_threads()} of {os.cpu_count()} processors"
    return Finding("threads", f"{text}; OMP_NUM_THREADS {'is not set' if asked is None else f'= {asked}'}")


def _back_ends() -> Finding:
    found = back_ends()
    there = ", ".join(name for name, is_there in found.items() if is_there) or "none"
    absent = ", ".join(name for name, is_there in found.items() if not is_there)
    text = f"{there}; not here: {absent}" if absent else there
    remedy = "install a build of torch with torch.distributed and gloo, such as those of pytorch.org"
    return Finding("back ends", text, None if found["gloo"] else False, remedy)


def _extras() -> Iterator[Finding]:
    there: list[str] = []
    absent: list[str] = []
    for extra in metadata.metadata("mixwise").get_all("Provides-Extra") or []:
        needed = [Requirement(line) for line in metadata.requires("mixwise") or []]
        names = [r.name for r in needed if r.marker is not None and r.marker.evaluate({"extra": extra})]
        names = [name for name in names if name != "mixwise"]  # an extra may name another one
        (there if all(map(_is_installed, names)) else absent).append(extra)
    text = f"{', '.join(there) or 'none'}"
    yield Finding("extras", f"{text}; not here: {', '.join(absent)} (pip install 'mixwise[NAME]')" if absent else text)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _data() -> Iterator[Finding]:
    root = data_folder(None, "")
    source = "$MIXWISE_DATA" if os.environ.get("MIXWISE_DATA") else "by default; another one: $MIXWISE_DATA"
    if root.exists() and not (root.is_dir() and os.access(root, os.R_OK)):
        remedy = "set MIXWISE_DATA to a folder that can be read"
        yield Finding("data", f"{root} ({source}) is no folder that can be read", False, remedy)
        return
    yield Finding("data", f"{root} ({source}); digits come with scikit-learn")
    cifar = [name for layout in LAYOUTS for name in (layout.folder, layout.archive.name)]
    found = {"cifar10": any((root / "cifar10" / name).exists() for name in cifar)}
    for name, files in FILES.items():
        found[name] = all(local_file(root / name, remote) is not None for remote in files)
    for name, is_there in found.items():
        text = f"found in {root / name}" if is_there else "not there; downloaded when a recipe asks for it"
        yield Finding("data", f"{name}: {text}")


# --- whether it works ---
def self_test(timeout: float = 30.0) -> Iterator[Finding]:
    """Small things of every kind, each with a known answer."""
    two = TwoProcesses(timeout)  # they start while the rest is tested
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the processors are taken, and the tasks are tiny
    try:
        for name, test, remedy in (
            ("solver", _solver, "pip install --force-reinstall 'piqp>=0.6.4,<0.7'"),
            ("spectral gap", _gap, "pip install --force-reinstall clarabel scipy"),
            ("sketch", _sketch, "pip install --force-reinstall numpy torch"),
            ("gossip", _gossip, "pip install --force-reinstall torch"),
            ("training", _training, "pip install --force-reinstall torch"),
            ("two processes", lambda: _two(two), "allow programs to listen on 127.0.0.1, and unset GLOO_SOCKET_IFNAME"),
        ):
            start = time.perf_counter()
            try:
                text = test()
            except Exception as error:  # whatever it is, it is what we were asked to find
                text = " ".join(f"{type(error).__name__}: {error}".split())
                yield Finding(name, text, False, remedy)
            else:
                yield Finding(name, f"{text}, {time.perf_counter() - start:.2f} s", True)
    finally:
        torch.set_num_threads(threads)
        two.end()


def _solver() -> str:
    G = np.eye(3)[np.arange(12) % 3]  # three types of data along a ring: one gossip step can reach the mean everywhere
    left = gradient_mixing_error(G, minimize_gme(gram_matrix(G), ring(12)).W)
    _expect(left < 1e-8, f"the weights leave {left:.2g} of the disagreement, 0 is possible")
    return "optimized weights reach the global mean on a ring of 12"


def _gap() -> str:
    gap = spectral_gap(fastest_mixing(ring(6)))  # eigenvalues 1 − wλ with λ from 1 to 4: best where 1 − w = 4w − 1
    _expect(abs(gap - 0.4) < 1e-6, f"the fastest weights of a ring of 6 have a spectral gap of {gap:.6f}, not 0.4")
    return "the fastest weights of a ring of 6 have the spectral gap of the formula"


def _sketch() -> str:
    rows = torch.randn(4, 2000, generator=generator(0, "doctor"), dtype=torch.float64)
    exact = rows @ rows.T
    sketches = [CountSketch(100, seed=seed)(rows) for seed in range(30)]
    error = float((sum((S @ S.T for S in sketches), torch.zeros(4, 4)) / len(sketches) - exact).abs().max() / 2000)
    _expect(error < 0.15, f"inner products of sketches are off by {error:.1%}")
    return f"inner products within {error:.1%} of the exact ones, averaged over 30 sketches"


def _gossip() -> str:
    graph = ring(8)
    X = torch.arange(8.0, dtype=torch.float64)[:, None]
    network, W = SimulatedNetwork(graph), metropolis_hastings(graph)
    for _ in range(100):
        X = network.mix(X, W)
    error = float((X - 3.5).abs().max())
    _expect(error < 1e-6, f"after 100 gossip steps a node is {error:.2g} away from the mean")
    return "100 steps bring a ring of 8 to the mean"


def _training() -> str:
    data, nodes = gaussian_mixture(samples=500, seed=0), 4
    parts = partition.by_label(data.train.y, nodes, labels_per_node=3, seed=0)
    task = ModuleTask(
        lambda: seeded(lambda: mlp([20, 16, 10]), 0),
        data.train,
        parts,
        batch=16,
        test=data.test,
        gradients="loop",  # what it takes to stack them is slow to import
    )
    training = Training(
        task,
        SimulatedNetwork(ring(nodes)),
        HeterogeneityAware(period=5),
        DSGD(),
        lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9),
    )
    first = float(training.step().losses.mean())
    for _ in range(18):
        training.step()
    last = float(training.step().losses.mean())
    _expect(last < first, f"the loss went from {first:.3g} to {last:.3g} in 20 steps")
    return f"20 steps on a small task, loss {first:.2f} to {last:.2f}"


def _two(processes: TwoProcesses) -> str:
    processes.wait()
    return "gossip between two processes over 127.0.0.1"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
