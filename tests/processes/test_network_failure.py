"""Processes that die, stop or do something else: every survivor ends soon, with an error that names the missing one."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from mixwise.errors import NetworkError
from mixwise.graphs import complete, ring
from mixwise.mixing import metropolis_hastings, uniform
from mixwise.network import DistributedNetwork
from process_pool import Others, error_of, in_processes, run_in_fresh_processes, run_in_processes

pytestmark = [in_processes, pytest.mark.timeout(400)]

LONG = 20_002  # numbers; averages of such rows take two rounds of messages


def all_reduce(network):
    return uniform(complete(network.graph.n))


OPERATIONS = {
    "mix": lambda network, X: network.mix(X, metropolis_hastings(network.graph), out=X),
    "exchange": lambda network, X: network.exchange(X.repeat(2, 1), network.graph),
    "gather": lambda network, X: network.gather(X),
    "average": lambda network, X: network.average(X),
    "all-reduce": lambda network, X: network.mix(X, all_reduce(network), out=X),
    "early": lambda network, X: network.start_mix(X, all_reduce(network)).wait(),
    # The thread waits for the second round as long as it takes; the next operation waits no longer than the timeout.
    "early, then gather": lambda network, X: (network.start_mix(X, all_reduce(network)), network.gather(X[:, :2])),
}


def until_an_error(operate, network, X, patience=120.0):
    """Repeat an operation until it fails; return the error's content, and how long the last call took."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            operate(network, X)
        except NetworkError as error:
            seconds = time.monotonic() - start
            return SimpleNamespace(message=str(error), seconds=seconds, **vars(error))
        network.begin(network.step + 1)
    raise AssertionError("no error")


def one_dies(rank, world, name, d):
    network, X = DistributedNetwork(ring(world), timeout=100), torch.ones(1, d)
    network.begin(0)
    if rank == 2:
        for _ in range(5):
            OPERATIONS[name](network, X)
        if name == "early":  # it dies when the rows are under way
            network.start_mix(X, all_reduce(network))
        os.kill(os.getpid(), signal.SIGKILL)
    return until_an_error(OPERATIONS[name], network, X)


RARELY = ("exchange", 10), ("gather", 10), ("all-reduce", LONG)
SOAKED = [pytest.param(*case, marks=pytest.mark.soak) for case in RARELY]


@pytest.mark.parametrize(("name", "d"), [("mix", 10), ("average", 9), ("early", LONG), *SOAKED])
def test_a_process_that_is_killed_is_named_at_once(name, d):
    """Also by those that are no neighbors of it and only see their neighbors give up."""
    outcomes = run_in_fresh_processes(4, one_dies, name, d)
    assert outcomes[2].exitcode == -signal.SIGKILL
    operation = "mix" if name in ("all-reduce", "early") else name
    for rank in (0, 1, 3):
        found = outcomes[rank].value
        assert (found.missing, found.operation) == ((2,), operation)
        assert found.step >= 5
        assert found.message.startswith(f"{operation}, step {found.step}: rank 2 is ")
        assert found.message.endswith("see what rank 2 wrote last")
        assert found.seconds < 50  # far from the timeout


def one_is_silent(rank, world, name):
    network, others = DistributedNetwork(ring(world), timeout=60), Others()
    X = torch.ones(1, LONG if "early" in name else 10)
    network.begin(0)
    network.transport.timeout = 1.5
    dist.barrier()  # so that the others begin together
    if rank == 1:
        others.wait_for(0, 2, 3)
    outcome = until_an_error(OPERATIONS[name], network, X)
    others.tell(rank)
    return outcome


SOAKED = [pytest.param(name, marks=pytest.mark.soak) for name in ("average", "early")]


@pytest.mark.parametrize("name", ["mix", "early, then gather", *SOAKED])
def test_a_process_that_is_silent_is_named_after_the_timeout(name):
    outcomes = run_in_fresh_processes(4, one_is_silent, name)
    operation = "average" if name == "average" else "mix"
    for rank in (0, 2, 3):
        found = outcomes[rank].value
        assert (found.missing, found.operation) == ((1,), operation), found
        assert found.step == (1 if name == "mix" and rank == 3 else 0)  # no neighbor of rank 1
        assert found.seconds < 60
    messages = [outcomes[rank].value.message for rank in (0, 2, 3)]
    assert any(f"{operation}, step 0: rank 1 did not answer within 1.5 s" in message for message in messages)
    late = outcomes[1].value  # it learns that it was too late
    assert "gave up waiting for this process, rank 1" in late.message


def something_else(rank, world):
    """One process mixes with other weights, one asks for something else: none crashes, none waits forever."""
    network, X = DistributedNetwork(complete(world), timeout=60), torch.ones(1, 10)
    W = uniform(network.graph)
    network.mix(X, W)
    network.transport.timeout = 1.5
    operate = (lambda network, X: network.gather(X[:, :3])) if rank == 0 else (lambda network, X: network.mix(X, W))
    network.begin(7)
    return until_an_error(operate, network, X)


def test_processes_that_do_different_things_end_with_an_error():
    for outcome in run_in_fresh_processes(3, something_else):
        assert outcome.value.step == 7
        assert outcome.value.seconds < 60


def one_never_comes(rank, world):
    others = Others()
    dist.barrier()  # so that the others begin together
    if rank == 1:
        others.wait_for(0, 2)
        return None
    told, _ = error_of(DistributedNetwork, ring(world), timeout=1.5)
    others.tell(rank)
    return told


def test_a_process_that_makes_no_network():
    outcomes = run_in_fresh_processes(3, one_never_comes)
    for rank in (0, 2):
        assert outcomes[rank].value.startswith("making the network: rank 1 ")


def used_again(rank, world):
    network, X, others = DistributedNetwork(ring(world), timeout=60), torch.ones(1, 10), Others()
    if rank == 1:
        others.wait_for(0)
        return None
    network.begin(3)
    network.transport.timeout = 1.5
    first, second = (until_an_error(OPERATIONS[name], network, X) for name in ("mix", "gather"))
    others.tell(rank)
    return first.message, second.message, second.seconds


def test_a_network_that_has_failed_says_so_at_once_when_it_is_used_again():
    first, second, seconds = run_in_fresh_processes(2, used_again)[0].value
    assert first == second
    assert seconds < 1.5  # it does not wait once more


def the_host_of_the_store_dies(rank, world):
    """As without torchrun, where rank 0 hosts the store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = [store.port if store else None]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    store = store or dist.TCPStore("127.0.0.1", port[0], is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    network, X = DistributedNetwork(complete(world), timeout=100), torch.ones(1, 10)
    network.begin(0)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return until_an_error(OPERATIONS["mix"], network, X)


def test_the_process_that_hosts_the_store_is_killed():
    for outcome in run_in_fresh_processes(3, the_host_of_the_store_dies)[1:]:
        assert outcome.value.missing == (0,)
        assert outcome.value.seconds < 60


def without_a_store(rank, world):
    transport = DistributedNetwork(ring(world), timeout=20).transport
    dist.destroy_process_group()
    with pytest.raises(NetworkError, match=f"mix, step 3: rank {1 - rank} is gone, its connection was closed"):
        transport.fail(1 - rank, RuntimeError("closed"), "mix", 3)


def test_a_loss_after_the_group_was_destroyed_is_still_named():
    run_in_processes(2, without_a_store)
