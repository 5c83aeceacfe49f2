"""Small values that many tests need: rows, mixing matrices and simulated runs."""

import numpy as np
import torch

from mixwise.context import Context
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import SimulatedNetwork
from mixwise.tasks import random_quadratics
from mixwise.training import Training


def random_rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal rows (n, d), the same in every dtype but for rounding."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def asymmetric(n: int, seed: int = 0, graph: Graph | None = None) -> MixingMatrix:
    """Doubly stochastic and far from symmetric: a mixture of the identity, a one-way ring and a permutation."""
    P = np.eye(n)[np.random.default_rng(seed).permutation(n)]
    return MixingMatrix.from_dense(0.5 * np.eye(n) + 0.3 * np.roll(np.eye(n), 1, axis=1) + 0.2 * P, graph)


def simulated(
    policy, algorithm=None, graph=None, *, task=None, network=None, lr=0.005, seed=0, momentum=0.0, **options
) -> Training:
    """A run of plain SGD on simulated nodes, which learn noisy quadratics unless there is another task."""
    network = SimulatedNetwork(graph) if network is None else network
    task = random_quadratics(network.graph.n, noise=0.2, seed=1) if task is None else task
    optimizer = lambda rows: torch.optim.SGD(rows, lr=lr, momentum=momentum)  # noqa: E731
    return Training(task, network, policy, algorithm, optimizer, context=Context(network.graph, seed=seed), **options)
