"""The mean of all rows in two rounds of messages: its bits, its bytes, and its second round while nobody waits yet."""

import os
import random
import signal
import time

import pytest
import torch

from mixwise.errors import NetworkError
from mixwise.graphs import complete, ring
from mixwise.mixing import uniform
from mixwise.network import DistributedNetwork, SimulatedNetwork, block
from process_pool import Others, in_processes, run_in_fresh_processes, run_in_processes
from programs import run_program

pytestmark = [in_processes, pytest.mark.timeout(400)]

LONG = 20_002  # numbers; shorter rows go to everybody as they are


def rows(n: int, d: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n + d), dtype=torch.float64).to(dtype)


# --- what it is ---
def averaged(rank, world, X):
    network = DistributedNetwork(complete(world), timeout=20)
    W, mine = uniform(network.graph), X[rank : rank + 1].clone()
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
    return mine, moved, network.traffic


def bytes_of(rank: int, world: int, X: torch.Tensor) -> int:
    """The columns of the others, and the own ones to each of the others."""
    own = len(block(X.shape[1], rank, world))
    return ((X.shape[1] - own) + (world - 1) * own) * X.element_size()


@pytest.mark.numerics
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("world", [3, 4])
def test_the_mean_of_all_rows(world, dtype):
    X = rows(world, LONG, dtype)
    simulated = SimulatedNetwork(complete(world))
    for _ in range(5):
        expected = simulated.mix(X, uniform(complete(world)))
    mean = X.double().mean(dim=0)
    for rank, (mine, moved, traffic) in enumerate(run_in_processes(world, averaged, X)):
        assert torch.equal(mine[0], expected[rank])
        tolerance = 1e-13 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(mine[0].double(), mean, rtol=0, atol=tolerance)
        torch.testing.assert_close(moved[0].double(), 3 + mean - X[rank].double(), rtol=0, atol=tolerance)
        assert traffic == simulated.traffic


def counted(rank, world):
    """Of each average: what this process has sent, and what was counted for all nodes."""
    network, found = DistributedNetwork(complete(world), timeout=20), []
    for d in (1, 50, LONG):
        X = rows(world, d, torch.float64)[rank : rank + 1]
        for average in (lambda X: network.mix(X, uniform(network.graph)), network.average):
            sent, traffic = network.sent, network.traffic.parameters
            average(X)
            found.append((network.sent - sent, network.traffic.parameters - traffic))
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_counted_is_what_the_processes_have_sent(world):
    for ranks in zip(*run_in_processes(world, counted), strict=True):
        (traffic,) = {counted for _, counted in ranks}
        assert traffic == sum(sent for sent, _ in ranks)


def averaged_rows(rank, world, X):
    network = DistributedNetwork(ring(len(X)), timeout=20)
    mine = X[network.nodes.start : network.nodes.stop].clone()
    found = network.average(mine)
    assert torch.equal(mine, X[network.nodes.start : network.nodes.stop])
    return found


@pytest.mark.parametrize(("n", "world"), [(5, 2), (7, 3), (4, 4), (3, 1)])
def test_several_rows_per_process(n, world):
    X = rows(n, LONG)
    for found in run_in_processes(world, averaged_rows, X):
        torch.testing.assert_close(found, X.mean(dim=0), rtol=0, atol=1e-14)


# --- what happens while it is under way ---
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
    assert run_in_processes(4, something_else_in_between, rows(4, LONG)) == [True] * 4


def one_is_late(rank, world):
    """Later than the timeout, but the others do something else meanwhile, so nobody waits so long."""
    network = DistributedNetwork(complete(world), timeout=4)
    mine = torch.full((1, LONG), float(rank))
    time.sleep(5 if rank == 1 else 0)
    pending = network.start_mix(mine, uniform(network.graph))
    time.sleep(0 if rank == 1 else 5)
    return pending.wait()[0, 0].item()


def test_who_does_not_wait_yet_has_no_timeout():
    assert run_in_processes(3, one_is_late) == [pytest.approx(1.0)] * 3


def outcome_of(wait):
    start = time.monotonic()
    try:
        wait()
    except NetworkError as error:
        return str(error), error.missing, error.step, time.monotonic() - start
    raise AssertionError("no error")


def one_dies(rank, world, when):
    network, mine = DistributedNetwork(complete(world), timeout=100), torch.ones(1, LONG)
    network.step, W = 7, uniform(network.graph)
    if rank == 2 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    pending = network.start_mix(mine, W)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)

    def until_it_fails():
        pending.wait()
        for _ in range(5):
            network.start_mix(mine, W).wait()

    return outcome_of(until_it_fails)


@pytest.mark.parametrize("when", ["under way", pytest.param("before", marks=pytest.mark.soak)])
def test_a_process_that_is_killed_is_named_at_once(when):
    outcomes = run_in_fresh_processes(4, one_dies, when)
    assert outcomes[2].exitcode == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert outcomes[rank].error is None, outcomes[rank].error
        message, missing, step, seconds = outcomes[rank].result
        assert (missing, step) == ((2,), 7)
        assert message.startswith("mix, step 7: rank 2 is ")
        assert seconds < 50  # far from the timeout


def one_is_silent(rank, world, wait_in_another):
    """The thread waits for the second round as long as it takes; who needs it waits no longer than the timeout."""
    network, mine, others = DistributedNetwork(complete(world), timeout=60), torch.ones(1, LONG), Others()
    network.step, network.transport.timeout = 3, 1.5
    if rank == 1:
        others.wait_for(0, 2)
        return None
    pending = network.start_mix(mine, uniform(network.graph))
    outcome = outcome_of(lambda: network.gather(mine[:, :2]) if wait_in_another else pending.wait())
    others.tell(rank)
    return outcome


@pytest.mark.parametrize("wait_in_another", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_process_that_is_silent_is_named_after_the_timeout(wait_in_another):
    outcomes = run_in_fresh_processes(3, one_is_silent, wait_in_another)
    messages = []
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].error
        message, missing, step, seconds = outcomes[rank].result
        assert (missing, step) == ((1,), 3), message
        assert seconds < 60  # it takes its 1.5 s, and what a busy machine adds
        messages.append(message)
    assert any(message.startswith("mix, step 3: rank 1 did not answer within 1.5 s") for message in messages)


def leaves_at_once(rank, world, seed):
    """As at the end of a loop that mixes early: the last rows set out, and the process group is destroyed."""
    network, mine = DistributedNetwork(complete(world), timeout=30), torch.ones(1, 300_000)
    stream = random.Random(seed + rank)
    for _ in range(3):
        network.start_mix(mine, uniform(network.graph)).wait()
    time.sleep(stream.choice([0, 0.001, 0.01, 0.1]))
    pending = network.start_mix(mine, uniform(network.graph))
    time.sleep(stream.choice([0, 0.001, 0.01]))
    torch.distributed.destroy_process_group()
    return pending is not None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_who_leaves_while_it_is_under_way_neither_hangs_nor_crashes(seed):
    for outcome in run_in_fresh_processes(4, leaves_at_once, seed):
        assert outcome.error is None, outcome.error
        assert outcome.result is True


PROGRAM = """
import sys, time, torch, torch.distributed as dist, mixwise as mw
from mixwise.mixing import uniform
dist.init_process_group("gloo")
model = torch.nn.Linear(200, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gossip = mw.Gossip(model, optimizer, mw.graphs.complete(4), policy=uniform, overlap=True, timeout=60)
for step in range(20):
    if step == 19 and dist.get_rank() == 2:
        time.sleep(float(sys.argv[1]))
    optimizer.zero_grad()
    model(torch.randn(8, 200)).square().sum().mul(1e-3).backward()
    gossip.step()
if sys.argv[2] == "tidy":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("late", "manners"),
    [(1.0, "untidy"), *(pytest.param(0.0, manners, marks=pytest.mark.soak) for manners in ("tidy", "untidy"))],
)
def test_a_program_that_ends_while_it_is_under_way_ends_well(tmp_path, late, manners):
    """The last average of a loop that mixes early is never waited for; its thread must not outlive Python."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = run_program(*torchrun, path, late, manners, starts_programs=True)
    assert done.returncode == 0, done.stderr
