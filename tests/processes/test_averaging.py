"""The mean of all rows in two rounds of messages: its bits, its bytes, and its second round before a rank waits."""

import random
import time

import pytest
import torch

from builders import random_rows
from mixwise.graphs import complete
from mixwise.mixing import uniform
from mixwise.network import DistributedNetwork, SimulatedNetwork, block
from process_pool import Others, in_processes, run_in_fresh_processes, run_in_processes
from programs import run_program

pytestmark = [in_processes, pytest.mark.timeout(400)]

LONG = 20_002  # numbers; shorter rows go to everybody as they are


def averaged(rank, world, X):
    network = DistributedNetwork(complete(world), timeout=20)
    W, mine, start = uniform(network.graph), X[rank : rank + 1].clone(), network.sent
    before = mine.clone()
    apart = network.mix(mine, W)
    assert torch.equal(mine, before)
    sent = network.sent
    pending = network.start_mix(mine, W)
    assert network.sent - sent == bytes_of(rank, world, X)  # known before it has happened
    assert torch.equal(pending.wait(), apart)
    scattered = torch.stack([mine, -mine], dim=2)[:, :, 0]  # its numbers do not lie beside each other
    assert torch.equal(network.mix(scattered, W), apart)
    moved = torch.full_like(mine, 3.0)
    network.start_mix(mine, W).move(moved)
    assert network.mix(mine, W, out=mine) is mine
    assert torch.equal(mine, apart)
    assert network.sent - sent == 4 * bytes_of(rank, world, X)
    return mine, moved, network.traffic, network.sent - start


def bytes_of(rank: int, world: int, X: torch.Tensor) -> int:
    """The columns of the others, and the own ones to each of the others."""
    own = len(block(X.shape[1], rank, world))
    return ((X.shape[1] - own) + (world - 1) * own) * X.element_size()


@pytest.mark.numerics
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("world", [3, 4])
def test_the_mean_of_all_rows(world, dtype):
    X = random_rows(world, LONG, dtype=dtype)
    simulated = SimulatedNetwork(complete(world))
    for _ in range(5):
        expected = simulated.mix(X, uniform(complete(world)))
    mean = X.double().mean(dim=0)
    results = run_in_processes(world, averaged, X)
    for rank, (mine, moved, traffic, _) in enumerate(results):
        assert torch.equal(mine[0], expected[rank])
        tolerance = 1e-13 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(mine[0].double(), mean, rtol=0, atol=tolerance)
        torch.testing.assert_close(moved[0].double(), 3 + mean - X[rank].double(), rtol=0, atol=tolerance)
        assert traffic == simulated.traffic
    assert simulated.traffic.parameters == sum(sent for *_, sent in results)


# --- while it is under way ---
def something_else_in_between(rank, world, X):
    """Between setting out and waiting, other operations and a collective of torch, in another order on one rank."""
    network = DistributedNetwork(complete(world), timeout=20)
    W, mine = uniform(network.graph), X[rank : rank + 1].clone()
    for turn in range(20):
        time.sleep(0.001 * (rank == turn % world))
        pending = network.start_mix(mine, W)
        torch.distributed.barrier()
        everyone = network.gather(mine[:, :5])
        torch.testing.assert_close(pending.wait()[0, :5], everyone.mean(dim=0), rtol=0, atol=1e-14)
        mine = mine * 1.1
    return True


def test_other_operations_while_it_is_under_way():
    assert run_in_processes(4, something_else_in_between, random_rows(4, LONG)) == [True] * 4


def one_is_late(rank, world):
    """Later than the timeout, but the others do something else until it has come, so that none waits for it."""
    network, others = DistributedNetwork(complete(world), timeout=60), Others()
    network.transport.timeout = 1.0
    mine = torch.full((1, LONG), float(rank))
    if rank == 1:
        others.wait_for(0, 2)
        time.sleep(1.5)
    pending = network.start_mix(mine, uniform(network.graph))
    others.tell(rank)
    others.wait_for(1)
    network.transport.timeout = 60
    return pending.wait()[0, 0].item()


def test_a_rank_that_does_not_wait_yet_has_no_timeout():
    assert run_in_processes(3, one_is_late) == [pytest.approx(1.0)] * 3


def leaves_at_once(rank, world):
    """As at the end of a loop that mixes early: the last rows set out, and the process group is destroyed."""
    network, mine = DistributedNetwork(complete(world), timeout=30), torch.ones(1, 300_000)
    stream = random.Random(rank)
    for _ in range(3):
        network.start_mix(mine, uniform(network.graph)).wait()
    time.sleep(stream.choice([0, 0.001, 0.01, 0.1]))
    pending = network.start_mix(mine, uniform(network.graph))
    time.sleep(stream.choice([0, 0.001, 0.01]))
    torch.distributed.destroy_process_group()
    return pending is not None


def test_leaving_while_it_is_under_way_neither_hangs_nor_crashes():
    for outcome in run_in_fresh_processes(4, leaves_at_once):
        assert outcome.value is True


PROGRAM = """
import time, torch, torch.distributed as dist, mixwise as mw
from mixwise.mixing import uniform
dist.init_process_group("gloo")
model = torch.nn.Linear(200, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gossip = mw.Gossip(model, optimizer, mw.graphs.complete(4), policy=uniform, overlap=True, timeout=60)
for step in range(20):
    if step == 19 and dist.get_rank() == 2:
        time.sleep(1)
    optimizer.zero_grad()
    model(torch.randn(8, 200)).square().sum().mul(1e-3).backward()
    gossip.step()
"""


def test_a_program_that_ends_while_it_is_under_way_ends_well(tmp_path):
    """The last average of a loop that mixes early is never waited for; its thread must not outlive Python."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = run_program(*torchrun, path, starts_programs=True)
    assert done.returncode == 0, done.stderr
