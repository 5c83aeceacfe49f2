"""Graphs, matrices, rows and simulated runs that tests build, written once.

Legend: W (n, n) mixing matrices; G (n, d) rows; Γ (n, n) Gram matrices.
"""

import os
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
import torch

from mixwise.data import gaussian_mixture, partition
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import Faults, FaultyNetwork, SimulatedNetwork
from mixwise.protocols import Context
from mixwise.tasks import ModuleTask, QuadraticTask, random_quadratics
from mixwise.training import Training

ONE_WAY_RING = Graph(3, [(0, 1), (1, 2), (2, 0)], directed=True)
TWO_PAIRS = Graph(4, [(0, 1), (2, 3)])  # not connected


def cases(names: str, *rows, **options):
    """`pytest.mark.parametrize` with a table: a test runs once per row."""
    return pytest.mark.parametrize(names, rows, **options)


def refused(error: type[Exception], message: str, call: Callable[..., object], *args, **options) -> None:
    """Check that a call raises an error of one line that matches a pattern."""
    with pytest.raises(error, match=message) as told:
        call(*args, **options)
    assert "\n" not in str(told.value)


class TouchesAFile:
    """A pickle that runs a command when it is read."""

    def __init__(self, file) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def as_networkx(graph: Graph) -> nx.Graph:
    """The same graph for networkx, directed or not."""
    g = nx.DiGraph() if graph.directed else nx.Graph()
    g.add_nodes_from(range(graph.n))
    g.add_edges_from(graph.edges)
    return g


def laplacian(graph: Graph) -> np.ndarray:
    """L = D − A of an undirected graph, dense."""
    return np.diag(graph.degrees) - graph.adjacency.toarray()


def normal_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Independent standard normal rows (n, d)."""
    return np.random.default_rng(seed).standard_normal((n, d))


def peak_memory(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the most bytes that Python and NumPy held for it at a time."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def asymmetric(n: int, seed: int = 0, graph: Graph | None = None) -> MixingMatrix:
    """A doubly stochastic W that is not symmetric: a mixture of four permutations, on the graph of its entries."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((n, n))
    for weight in rng.dirichlet(np.ones(4)):
        dense[np.arange(n), rng.permutation(n)] += weight
    return MixingMatrix.from_dense(dense, graph)


def scaled(gram: np.ndarray) -> np.ndarray:
    """Γ scaled to mean diagonal 1, as GME-opt sees it; 0 stays 0."""
    Gamma = np.asarray(gram, dtype=np.float64)
    largest = np.abs(Gamma).max() or 1.0  # first, so that no sum overflows
    Gamma = Gamma / (np.trace(Gamma / largest) / len(Gamma) * largest or 1.0)
    return (Gamma + Gamma.T) / 2


def gme_objective(Gamma: np.ndarray, W: np.ndarray, penalty: float = 0.0) -> float:
    """Tr(WᵀΓW) + λ ‖W‖²_F; for doubly stochastic W, ‖W − J‖²_F is 1 less than ‖W‖²_F."""
    return float((W * (Gamma @ W)).sum() + penalty * (W**2).sum())


def assert_symmetric_doubly_stochastic(W: MixingMatrix, graph: Graph) -> None:
    """W = Wᵀ ≥ 0 on the graph, with sums of 1 up to rounding."""
    dense = W.to_dense()
    assert W.graph == graph
    assert W.is_symmetric
    assert dense.min() >= 0
    np.testing.assert_allclose(dense.sum(axis=0), 1, rtol=0, atol=1e-14 * max(2, graph.n))


def svg_texts(svg: str) -> list[str | None]:
    """The text in a picture; raises if the picture is not well-formed."""
    return [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# --- GME-opt ---
HARD_GRAMS = ["rank 1", "rank 3", "near-duplicate rows", "duplicate rows", "rows over 12 orders", "label shares"]
HARD_GRAMS += ["one row only", "diagonal with zeros", "eigenvalues over 14 orders", "full rank"]


def hard_gram(kind: str, n: int) -> np.ndarray:
    """A Gram matrix (n, n) that is hard for solvers; one of `HARD_GRAMS`."""
    rng = np.random.default_rng(n)
    G = rng.standard_normal((n, 2 * n))
    if kind == "one row only":
        return np.diag(np.eye(n)[0])
    if kind == "diagonal with zeros":
        return np.diag(rng.random(n) * (np.arange(n) % 2))
    if kind == "eigenvalues over 14 orders":
        Q = np.linalg.qr(G)[0]
        return (Q * 10 ** rng.uniform(-14, 0, n)) @ Q.T
    if kind == "near-duplicate rows":
        G = G[rng.integers(0, 3, n)] + 1e-9 * rng.standard_normal(G.shape)
    elif kind == "duplicate rows":
        G = G[rng.integers(0, 2, n)]
    elif kind == "rows over 12 orders":
        G = G * 10 ** rng.uniform(-6, 6, (n, 1))
    elif kind == "label shares":
        G = rng.dirichlet(np.full(10, 0.1), n)
    elif kind.startswith("rank"):
        G = G[:, : int(kind.split()[1])]
    G = G - G.mean(axis=0)
    return G @ G.T


def assert_feasible(solution, graph: Graph, kind: str = "doubly", least_heard: float = 0.0) -> np.ndarray:
    """Rows sum to 1 within 1e-9, columns as well or to `least_heard`, on the graph, nowhere negative; returns W."""
    assert solution.usable
    assert (solution.W.graph, solution.W.kind) == (graph, kind)
    W = solution.W.to_dense()
    columns = W.sum(axis=0)
    assert np.abs(W.sum(axis=1) - 1).max() <= 1e-9
    assert columns.min() >= least_heard - 1e-9 if kind == "sender" else np.abs(columns - 1).max() <= 1e-9
    assert W.min() >= 0
    return W


# --- runs ---
def random_rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal rows (n, d), the same in every dtype but for rounding."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@lru_cache
def well_conditioned(n: int, d: int, seed: int = 0) -> QuadraticTask:
    """Quadratics without noise on which a few hundred steps are enough, with optima of the nodes that differ."""
    stream = torch.Generator().manual_seed(seed)
    A = torch.eye(d) + 0.25 * torch.randn(n, d, d, generator=stream)
    return QuadraticTask(A, torch.randn(n, d, generator=stream), noise=0.0, seed=seed)


def mixture_task(module, nodes: int, **options) -> ModuleTask:
    """Classification of 200 samples of four classes, 8 numbers each, divided over the nodes by label."""
    splits = gaussian_mixture(classes=4, dim=8, samples=200)
    parts = partition.dirichlet(splits.train.y, nodes, 0.5, seed=0)
    return ModuleTask(module, splits.train, parts, test=splits.test, **options)


def sgd(lr: float = 0.01, **options):
    """A function that makes SGD for the rows of a run."""
    return lambda rows: torch.optim.SGD(rows, lr=lr, **options)


def simulated(
    policy, algorithm=None, graph=None, *, task=None, network=None, optimizer=None, lr=0.005, seed=0, momentum=0.0,
    **options,
) -> Training:  # fmt: skip
    """A run on simulated nodes, of plain SGD on noisy quadratics unless there is another optimizer or task."""
    network = SimulatedNetwork(graph) if network is None else network
    task = random_quadratics(network.graph.n, noise=0.2, seed=1) if task is None else task
    optimizer = optimizer or sgd(lr, momentum=momentum)
    return Training(task, network, policy, algorithm, optimizer, context=Context(network.graph, seed=seed), **options)


def stepped(training: Training, steps: int) -> Training:
    """The run, after so many steps."""
    for _ in range(steps):
        training.step()
    return training


def faulty(graph: Graph, seed: int = 0, links=None, wire_dtype=None, **faults) -> FaultyNetwork:
    """A simulated network with these faults."""
    return FaultyNetwork(SimulatedNetwork(graph, links, wire_dtype), Faults(**faults), seed)
