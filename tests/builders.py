"""Graphs, matrices, rows and simulated runs that tests build, written once.

Legend: W (n, n) mixing matrices; G (n, d) rows; Γ (n, n) Gram matrices.
"""

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import SimulatedNetwork
from mixwise.protocols import Context
from mixwise.tasks import random_quadratics
from mixwise.training import Training

ONE_WAY_RING = Graph(3, [(0, 1), (1, 2), (2, 0)], directed=True)
TWO_PAIRS = Graph(4, [(0, 1), (2, 3)])  # not connected


def refused(
    error: type[Exception], message: str, call: Callable[..., object], *args: object, **options: object
) -> None:
    """Check that a call raises an error of one line that matches a pattern."""
    with pytest.raises(error, match=message) as told:
        call(*args, **options)
    assert "\n" not in str(told.value)


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


def random_rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal rows (n, d), the same in every dtype but for rounding."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def simulated(
    policy, algorithm=None, graph=None, *, task=None, network=None, lr=0.005, seed=0, momentum=0.0, **options
) -> Training:
    """A run of plain SGD on simulated nodes, which learn noisy quadratics unless there is another task."""
    network = SimulatedNetwork(graph) if network is None else network
    task = random_quadratics(network.graph.n, noise=0.2, seed=1) if task is None else task
    optimizer = lambda rows: torch.optim.SGD(rows, lr=lr, momentum=momentum)  # noqa: E731
    return Training(task, network, policy, algorithm, optimizer, context=Context(network.graph, seed=seed), **options)
