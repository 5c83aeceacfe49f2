"""Rows in bfloat16, divided over processes, are those of a simulation: draws go by node, step and round alone."""

import torch

from every_algorithm import GRAPH, NODES, small_task
from mixwise.algorithms import DSGD
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.policies import HeterogeneityAware
from mixwise.train import Training
from processes import in_processes, run_in_processes

pytestmark = in_processes


def run(network):
    task = small_task(20, param_dtype=torch.bfloat16)
    make = lambda blocks: torch.optim.Adam(blocks, lr=1e-3)  # noqa: E731
    training = Training(task, network, HeterogeneityAware(2), DSGD(), make)
    for _ in range(6):
        training.step()
    return training.X.float(), training.network.traffic


def in_process(rank, world):
    X, traffic = run(DistributedNetwork(GRAPH))
    return X.numpy(), traffic.parameters


def test_two_processes_and_a_simulation():
    X, traffic = run(SimulatedNetwork(GRAPH))
    found = run_in_processes(2, in_process)
    together = torch.cat([torch.from_numpy(rows) for rows, _ in found])
    assert together.shape == (NODES, X.shape[1])
    assert {size for _, size in found} == {traffic.parameters}
    # The sums of a mixing differ in the last digits of a float32, so that one rounding in 10,000 or so falls elsewhere.
    assert (together != X).float().mean() < 0.01
    torch.testing.assert_close(together, X, rtol=2**-6, atol=1e-3)
