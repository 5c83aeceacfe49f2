"""Momentum tracking and gradient tracking with momentum: the same with fixed weights, another method otherwise."""

import numpy as np
import pytest
import torch

from builders import simulated, well_conditioned
from mixwise.algorithms import GradientTracking, MomentumTracking
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.policies import EdgeColoring

N, D, LR, BETA = 6, 4, 0.02, 0.7


def iterates(algorithm, policy, **options):
    sgd = lambda blocks: torch.optim.SGD(blocks, lr=LR, **options)  # noqa: E731
    training = simulated(policy, algorithm, ring(N), task=well_conditioned(N, D), optimizer=sgd)
    found = []
    for _ in range(12):
        training.step()
        found.append(training.X.clone())
    return torch.stack(found)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("policy", [metropolis_hastings(ring(N)), EdgeColoring(2)], ids=["one matrix", "even-odd"])
def test_with_fixed_weights_it_is_gradient_tracking_with_momentum(policy, nesterov):
    """Both are linear filters of the gradients, and with a fixed W filters commute."""
    tracked = iterates(MomentumTracking(BETA, nesterov), policy)
    expected = iterates(GradientTracking(), policy, momentum=BETA, nesterov=nesterov)
    torch.testing.assert_close(tracked, expected, rtol=1e-11, atol=1e-12)


def test_with_weights_that_change_it_follows_the_papers_recursion_and_not_the_other():
    """u ← βu + g;  x ← Wᵀ(x − η(u − c));  c ← Wᵀ(c − u) + u, with another W at every mixing."""
    policy, task = EdgeColoring(1), well_conditioned(N, D)
    tracked = iterates(MomentumTracking(BETA), policy)
    halves = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 0)]]
    matrices = []
    for pairs in halves:
        P = np.eye(N)
        for i, j in pairs:
            P[[i, i, j, j], [i, j, i, j]] = 0.5
        matrices.append(P)
    starts = []
    for first in (0, 1):  # which half comes first is the policy's choice
        x, u, c = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D))
        x[:] = task.initial(range(N)).numpy()
        expected = []
        for t in range(12):
            P = matrices[(first + t) % 2]
            u = BETA * u + task.losses_and_gradients(torch.from_numpy(x), range(N), t)[1].numpy()
            x, c = P @ (x - LR * (u - c)), P @ (c - u) + u
            expected.append(x)
        starts.append(np.abs(np.stack(expected) - tracked.numpy()).max())
    assert min(starts) < 1e-11
    other = iterates(GradientTracking(), policy, momentum=BETA)
    assert float((tracked - other).abs().max()) > 1e-3
