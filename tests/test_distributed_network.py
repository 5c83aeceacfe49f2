"""Rows that really travel: the same as in a simulation, every byte counted, every wait bounded."""

import numpy as np
import pytest
import torch

from mixwise.graphs import complete, ring
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.network import DistributedNetwork, SimulatedNetwork
from processes import in_processes, run_in_processes

pytestmark = in_processes


def asymmetric(n: int, seed: int = 0) -> MixingMatrix:
    rng = np.random.default_rng(seed)
    P = np.eye(n)[rng.permutation(n)]
    return MixingMatrix.from_dense(0.5 * np.eye(n) + 0.3 * np.roll(np.eye(n), 1, axis=1) + 0.2 * P, complete(n))


def mixed(rank, world, W, X, in_place):
    network = DistributedNetwork(W.graph, timeout=20)
    own = X[network.nodes.start : network.nodes.stop].clone()
    out = network.mix(own, W, out=own if in_place else None)
    return out, network.traffic, network.sent


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("in_place", [False, True])
def test_mixing_is_w_transposed_times_x(world, in_place):
    for n, d in ((4, 10), (7, 3), (9, 1000)):
        W, X = asymmetric(n), torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        simulated = SimulatedNetwork(W.graph)
        expected = simulated.mix(X, W)
        results = run_in_processes(world, mixed, W, X, in_place)
        torch.testing.assert_close(torch.cat([rows for rows, _, _ in results]), expected, rtol=0, atol=1e-14)
        assert all(traffic == simulated.traffic for _, traffic, _ in results)


def test_ring():
    W, X = metropolis_hastings(ring(4)), torch.randn(4, 5)
    results = run_in_processes(4, mixed, W, X, True)
    assert [sent for _, _, sent in results] == [2 * 5 * 4 + 3 * 24] * 4
