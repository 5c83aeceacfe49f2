"""D-SGD on quadratics ‖A x + b‖², where Python around a step dominates: a NumPy loop, and decent-bench.

decent-bench needs Python ≥ 3.13. Where it is not installed beside mixwise, DECENT_BENCH_PYTHON names the interpreter
that has it; it then runs in a process of its own, in turns with the others.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mixwise.graphs import ring
from mixwise.mixing import GmeProblem, gram_matrix, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware
from mixwise.protocols import Policy
from mixwise.seeding import numpy_generator
from mixwise.sketch import ExactSketch
from mixwise.tasks import QuadraticTask
from mixwise.training import Training

from .measure import Benchmark, Contestant, Contestants, Missing

LR = 0.01
SOLVING = "NumPy and GmeProblem"


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    # The bar for 16 nodes is half of the overhead on 18 November 2026, 40 times the NumPy loop.
    for n, d, bar in ((16, 10, 20.0), (256, 100, 2.0)):
        yield Benchmark(
            f"A step of D-SGD, {n} nodes on a ring, d = {d}: what does a library cost beside W.T @ (X - lr * G)?",
            partial(steps, 4 if tiny else n, d), bar, "NumPy loop", "lower", limit="NumPy loop", rounds=15,
        )  # fmt: skip
    yield Benchmark(
        "The same with weights that minimize the GME of every step, 16 nodes, d = 10: beside solving for W alone?",
        partial(gme_steps, 4 if tiny else 16, 10), 2.0, SOLVING, "lower", limit=SOLVING, rounds=15,
    )  # fmt: skip


def steps(n: int, d: int) -> Contestants:
    A, b = objectives(n, d)
    W = metropolis_hastings(ring(n)).to_dense()
    return {
        "mixwise": training(A, b, Fixed(metropolis_hastings)),
        "NumPy loop": numpy_loop(A, b, lambda _: W),
        "decent-bench, ATC": decent_bench(A, b),
    }


def gme_steps(n: int, d: int) -> Contestants:
    A, b = objectives(n, d)
    problem = GmeProblem(ring(n))
    return {
        "mixwise": training(A, b, HeterogeneityAware(sketch=ExactSketch())),
        SOLVING: numpy_loop(A, b, lambda G: problem.solve(gram_matrix(G)).W.to_dense()),
    }


def objectives(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    draw = numpy_generator(0, "benchmark", "quadratics", n, d)
    return draw.standard_normal((n, d, d)) / d**0.5, draw.standard_normal((n, d))


def training(A: np.ndarray, b: np.ndarray, policy: Policy) -> Contestant:
    task, network = QuadraticTask(torch.tensor(A), torch.tensor(b)), SimulatedNetwork(ring(len(A)))
    run = Training(task, network, policy, None, lambda rows: torch.optim.SGD(rows, lr=LR))
    return Contestant(lambda _: run.step())


def numpy_loop(A: np.ndarray, b: np.ndarray, weights: Callable[[np.ndarray], np.ndarray]) -> Contestant:
    """The lines that one would write."""
    X = np.zeros((len(A), A.shape[2]))

    def step(_: int) -> None:
        residual = (A @ X[:, :, None])[:, :, 0] + b
        G = 2 * (A.transpose(0, 2, 1) @ residual[:, :, None])[:, :, 0]
        X[:] = weights(G).T @ (X - LR * G)

    return Contestant(step)


def decent_bench(A: np.ndarray, b: np.ndarray) -> Contestant | Missing:
    """Adapt-then-combine, which is D-SGD, in a process that steps when it is asked to."""
    python = sys.executable if importlib.util.find_spec("decent_bench") else os.environ.get("DECENT_BENCH_PYTHON")
    if python is None:
        return Missing("pip install decent-bench (Python ≥ 3.13), or set DECENT_BENCH_PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(inputs := Path(folder) / "inputs.npz", A=A, b=b, lr=LR)
        worker = subprocess.Popen(
            [python, str(Path(__file__).with_name("decent_bench_worker.py")), str(inputs)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        )  # fmt: skip
        worker.stdout.readline()  # it has read its inputs

    def step(_: int) -> float:
        print(max(1, 1600 // len(A)), file=worker.stdin, flush=True)
        return float(worker.stdout.readline())

    weakref.finalize(step, worker.communicate)  # which ends it
    return Contestant(step, own_clock=True)
