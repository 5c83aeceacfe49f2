"""A graph, a task and a training after the loss of nodes; in one process, where the expected values are at hand."""

from functools import partial

import pytest
import torch

from builders import mixture_task, refused, simulated, stepped
from mixwise.errors import NetworkError
from mixwise.graphs import chain, complete, ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import seeded
from mixwise.network.survivors import listed, remaining_graph
from mixwise.tasks import random_quadratics

LEFT = [0, 1, 3, 5]


def batch_normed():
    return torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))


def module_task():
    return mixture_task(lambda: seeded(batch_normed, 0), 6, batch=4, dtype=torch.float64, gradients="loop")


TASKS = {"quadratics": lambda: random_quadratics(6, 3, 0.1, 2), "module": module_task}


def test_a_ring_that_loses_nodes_is_a_chain():
    assert remaining_graph(ring(6), [0, 1, 2, 4, 5]) == chain(5).permuted([3, 4, 0, 1, 2])
    assert remaining_graph(complete(5), [1, 4]) == complete(2)


def test_what_fell_apart_is_told_by_the_names_of_the_start():
    says = r"without nodes 1-2, 5 .* fallen apart: 0 \| 3-4 cannot reach"
    refused(NetworkError, says, remaining_graph, chain(6), [0, 3, 4])
    assert listed([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


@pytest.mark.parametrize("name", TASKS)
def test_survivors_keep_their_data(name):
    """Losses and gradients are those of the same nodes in the whole task."""
    X = TASKS[name]().initial(range(6)) + torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
    losses, G = TASKS[name]().losses_and_gradients(X, range(6), 7)
    losses, G = losses.clone(), G.clone()
    left = TASKS[name]().restricted(LEFT)
    assert left.nodes == 4
    some, some_G = left.losses_and_gradients(X[LEFT][1:3], range(1, 3), 7)
    assert torch.equal(some, losses[[1, 3]])
    assert torch.equal(some_G, G[[1, 3]])
    assert torch.equal(left.initial(range(2)), TASKS[name]().initial([0, 1]))


def test_quadratics_of_survivors_have_their_own_optimum():
    left = random_quadratics(6, 3, 0.0, 2).restricted(LEFT)
    assert left.full_gradients(left.optimum).mean(0).abs().max() < 1e-10
    assert left.restricted([1, 3]).names == [1, 5]


@pytest.mark.parametrize("name", TASKS)
def test_a_training_takes_over_rows_and_optimizer_and_jumps_to_the_step_of_the_farthest(name):
    """The step after is that of SGD with the old momentum and the new weights, at the rate of that step."""

    def training(task, graph):
        decay = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
        return simulated("metropolis-hastings", graph=graph, task=task, lr=0.05, momentum=0.9, scheduler=decay)

    before = stepped(training(TASKS[name](), ring(6)), 5)
    state = before.state()
    for _, part in state.walk():
        part.rows = {key: value[LEFT].clone() for key, value in part.rows.items()}
    momenta, graph = state.parts["optimizer"].rows, chain(4)
    after = training(TASKS[name]().restricted(LEFT), graph)
    after.take_over(state, 8)
    assert (after.t, after.driver.t, after.driver.began) == (8, 8, 8)
    assert after.network.traffic.parameters == before.network.traffic.parameters * 4 // 6

    X, V = state.rows["X"], torch.cat([momenta[key] for key in sorted(momenta)], dim=1)
    after.step()
    _, G = TASKS[name]().restricted(LEFT).losses_and_gradients(X, range(4), 8)
    X_prime = X - 0.05 * 0.9**8 * (0.9 * V + G)
    expected = torch.from_numpy(metropolis_hastings(graph).to_dense()).T @ X_prime
    assert torch.allclose(after.X, expected, rtol=0, atol=1e-12)
