"""Rows that really travel: the same as in a simulation, every byte counted, every wait bounded."""

import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

import builders
from builders import cases, random_rows
from mixwise.algorithms import Quantize, TopK
from mixwise.errors import MixwiseError, NetworkError
from mixwise.graphs import Graph, complete, random_connected, ring, star
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings, uniform, uniform_sender
from mixwise.network import DistributedNetwork, SimulatedNetwork, Traffic, block
from mixwise.network.routes import Router
from mixwise.network.traffic import LONG_ROW, SKETCHES
from process_pool import Others, error_of, in_processes, run_in_processes
from programs import torchrun

pytestmark = [in_processes, pytest.mark.timeout(400)]

DOUBLE, SINGLE = torch.float64, torch.float32


def own(X, network):
    return X[network.nodes.start : network.nodes.stop].clone()


def asymmetric(n, seed=0):
    return builders.asymmetric(n, seed, complete(n))


# --- blocks ---
@pytest.mark.parametrize("n", [1, 2, 5, 16, 17])
def test_blocks_are_contiguous_and_differ_by_one_at_most(n):
    for world in range(1, n + 1):
        blocks = [block(n, rank, world) for rank in range(world)]
        assert [node for nodes in blocks for node in nodes] == list(range(n))
        assert {len(nodes) for nodes in blocks} <= {n // world, -(-n // world)}
    with pytest.raises(NetworkError, match=rf"{n + 1} processes for {n} nodes: every process needs at least one"):
        block(n, 0, n + 1)


# --- every operation ---
MATRICES = [
    asymmetric(4),
    asymmetric(9),
    metropolis_hastings(star(7)),
    metropolis_hastings(ring(5)),
    metropolis_hastings(random_connected(40, 0.2, seed=1)),
    clique_averaging([(0, 5), (1, 4)], complete(6)),
    MixingMatrix.from_dense(np.eye(4), ring(4)),
    uniform_sender(Graph(6, [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (3, 0)], directed=True)),
    uniform_sender(Graph(6, [(5, 0), (4, 0)], directed=True)),  # most of them send nothing
]


class Case(NamedTuple):
    """Weights, the rows that are mixed with them, and how these travel."""

    W: MixingMatrix
    d: int
    dtype: torch.dtype = DOUBLE
    wire: torch.dtype | None = None
    compressor: TopK | Quantize = TopK(0.1)


LONG = 20_002  # numbers; averages of such rows take two rounds of messages
CASES = [Case(W, d) for W in MATRICES for d in (1, 7, 8_200)]  # the longest travel without being packed
CASES += [Case(asymmetric(4), 150_000, dtype) for dtype in (SINGLE, DOUBLE)]  # several blocks of columns
CASES += [Case(uniform(complete(n)), LONG, dtype) for n in (3, 4) for dtype in (SINGLE, DOUBLE)]
for n, d in ((4, 3), (4, 700), (5, 20_000)):  # the first are too short to be rounded
    CASES += [Case(asymmetric(n), d, SINGLE, wire) for wire in (torch.bfloat16, torch.int8)]
for n, d in ((4, 700), (9, 90), (5, 40_000)):
    CASES += [Case(asymmetric(n), d, compressor=compressor) for compressor in (TopK(1.0), Quantize(4), Quantize(1))]

MIXED = {"apart", "scattered", "in place", "early", "moved"}
TOLD_TO_ALL = {"gathered", "average"}


class Result(NamedTuple):
    rows: torch.Tensor
    sent: int  # bytes, by this process
    traffic: Traffic  # so far


def operated(network, case):
    """What every operation on the owned rows returns, by its name."""
    W, d, dtype, _, compressor = case
    X = random_rows(W.n, d, dtype=dtype)
    mine, moved = own(X, network), own(random_rows(W.n, d, seed=1, dtype=dtype), network)
    leave = torch.from_numpy(np.isin(W.graph.arcs.senders, network.nodes))
    messages = random_rows(len(leave), min(d, 8_200), dtype=dtype)[leave]
    in_place, packing = mine.clone(), compressor(mine.clone(), network.nodes, 3)
    operations = {
        "apart": lambda: network.mix(mine, W),
        "scattered": lambda: network.mix(torch.stack([mine, -mine], dim=2)[:, :, 0], W),  # not beside each other
        "in place": lambda: network.mix(in_place, W, out=in_place),
        "early": lambda: network.start_mix(mine, W).wait(),
        "moved": lambda: network.start_mix(mine.clone(), W).move(moved) or moved,
        "compressed": lambda: network.mix(packing.rows, W, packing=packing),
        "exchanged": lambda: network.exchange(messages, W.graph).rows,
        "sketches": lambda: network.exchange(messages, W.graph, cargo=SKETCHES).rows,
        "gathered": lambda: network.gather(mine),
        "average": lambda: network.average(mine)[None],
    }
    results = {}
    for name, operate in operations.items():
        before = getattr(network, "sent", 0)
        rows = operate()
        results[name] = Result(rows, getattr(network, "sent", 0) - before, replace(network.traffic))
        assert torch.equal(mine, own(X, network)), name
    assert results["in place"].rows is in_place
    return results


@contextmanager
def counting():
    """Yield a list of the bytes of each message that is given to torch.distributed for sending."""
    sizes, isend = [], dist.isend

    def counted_isend(tensor, *args, **kwargs):
        sizes.append(tensor.nbytes)
        return isend(tensor, *args, **kwargs)

    with patch.object(dist, "isend", counted_isend):
        yield sizes


def bytes_of_rows(name, case, size, rank, world):
    """The bytes that a process sends to mix rows of so many bytes: each once to every other that needs it."""
    W, n = case.W, case.W.n
    blocks = [block(n, other, world) for other in range(world)]
    if name in MIXED and W.is_average and n == world:  # the columns of the others, and the own ones to each of them
        own = len(block(case.d, rank, world))
        return (case.d - own + (world - 1) * own) * case.dtype.itemsize
    owner = {node: other for other, nodes in enumerate(blocks) for node in nodes}
    pairs = {(int(i), owner[int(j)]) for i, j in W.edge_weights}
    return sum(owner[i] == rank != to for i, to in pairs) * size


def as_in_a_simulation(rank, world, cases, batched):
    """Compare the results of every operation, their bits, their bytes and the traffic."""
    for case in cases:
        simulated = SimulatedNetwork(case.W.graph, wire_dtype=case.wire)
        expected, before = operated(simulated, case), Traffic()
        with nullcontext() if batched else counting() as sizes:
            network = DistributedNetwork(case.W.graph, timeout=20, wire_dtype=case.wire)
            network.transport.batched = batched
            found = operated(network, case)
            assert batched or sum(sizes) == network.sent
        X = random_rows(case.W.n, case.d, dtype=case.dtype)
        receivers = np.sort(case.W.graph.arcs.receivers)
        for name, (rows, sent, traffic) in found.items():
            whole, _, counted = expected[name]
            nodes = receivers if name in ("exchanged", "sketches") else np.arange(case.W.n)
            wanted = whole if name in TOLD_TO_ALL else whole[torch.from_numpy(np.isin(nodes, network.nodes))]
            if name == "average" or (name == "moved" and case.W.is_average):  # by other sums
                torch.testing.assert_close(rows, wanted)
            else:
                assert torch.equal(rows, wanted), (name, case)
            assert traffic == counted, (name, case)
            if name in MIXED | {"compressed"}:
                packing = case.compressor(X.clone(), range(case.W.n), 3) if name == "compressed" else None
                size = simulated.row_bytes(X, packing)
                assert sent == bytes_of_rows(name, case, size, rank, world), (name, case)
            if world == case.W.n:  # one node per process: what is counted is what travels
                of_all = network.transport.gather(torch.tensor([[sent]]), "bytes").sum().item()
                size = case.d * case.dtype.itemsize
                if name == "average" and size < LONG_ROW:  # one round is faster, and counted as if it were long
                    of_all -= (world - 2) * (world - 1) * size
                assert of_all == sum(vars(counted).values()) - sum(vars(before).values()), (name, case)
            before = counted
        mean = found["average"].rows
        assert (network.transport.gather(mean, "mean") == mean).all()  # the same bits on all processes


@pytest.mark.numerics
@pytest.mark.parametrize(("world", "batched"), [(1, False), (2, False), (3, False), (4, False), (4, True)])
def test_every_operation_is_that_of_a_simulation_in_any_division(world, batched):
    """To the last bit and to the byte, and in batches, as nccl gets its calls (gloo understands them, too)."""
    run_in_processes(world, as_in_a_simulation, [case for case in CASES if case.W.n >= world], batched)


def new_weights_each_time(rank, world, X, matrices, rounds):
    network = DistributedNetwork(complete(len(X)), timeout=20)
    mine = own(X, network)
    for t in range(rounds):
        W = matrices[t % len(matrices)]
        W = W if t % 2 else MixingMatrix(W.graph, W.weights)  # another object with the same value
        network.mix(mine, W, out=mine)
    return mine


def test_a_new_matrix_at_every_step():
    matrices, X = [asymmetric(7, seed) for seed in range(5)], random_rows(7, 3)
    expected = X
    for t in range(150):
        expected = torch.from_numpy(matrices[t % 5].to_dense().T) @ expected
    found = torch.cat(run_in_processes(3, new_weights_each_time, X, matrices, 150))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def in_a_group(rank, world, W, X):
    """Ranks 1 and 3 of four: the second process of the group is rank 3."""
    group, found = dist.new_group([1, 3]), None
    if rank in (1, 3):
        network = DistributedNetwork(W.graph, group=group, timeout=20)
        found = network.nodes, network.mix(own(X, network), W)
    dist.barrier()
    return found


def test_a_group_of_some_of_the_processes():
    W, X = asymmetric(5), random_rows(5, 4)
    results = run_in_processes(4, in_a_group, W, X)
    assert results[0] is results[2] is None
    assert [results[1][0], results[3][0]] == [range(3), range(3, 5)]
    found = torch.cat([results[1][1], results[3][1]])
    torch.testing.assert_close(found, torch.from_numpy(W.to_dense().T) @ X, rtol=0, atol=1e-14)


# --- making routes is fast: a policy may have new weights at every step ---
@pytest.mark.parametrize(("n", "degree", "bound"), [(16, 4, 0.002), (1000, 6, 0.03)])
def test_routes_of_a_new_matrix_are_made_fast(n, degree, bound):
    offsets = range(1, degree // 2 + 1)
    graph = Graph(n, [(i, (i + k * k) % n) for i in range(n) for k in offsets])
    W, router, times = metropolis_hastings(graph), Router(n, 1, 4), []
    for _ in range(10):
        start = time.perf_counter()
        router.mixing(W)
        times.append(time.perf_counter() - start)
    assert min(times) < bound


# --- what is refused ---
def disagreeing(rank, world, what):
    graph = ring(5) if what == "graph" and rank == 2 else ring(4)
    wire = torch.bfloat16 if what == "wire_dtype" and rank >= 1 else None
    return error_of(DistributedNetwork, graph, timeout=20, wire_dtype=wire)[0]


@cases(
    "what, told",
    ("graph", "rank 2 differs from rank 0: the graph is a graph with 5 nodes and 5 edges"),
    ("wire_dtype", "rank 0 differs from rank 1: wire_dtype is None instead of torch.bfloat16; all processes need"),
)
def test_processes_that_do_not_agree_raise_an_error_everywhere(what, told):
    for found in run_in_processes(3, disagreeing, what):
        assert found.startswith(told)


def refused(rank, world):
    network, W = DistributedNetwork(ring(6), timeout=20), metropolis_hastings(ring(6))
    check, whole = partial(builders.refused, MixwiseError), torch.zeros(6, 2)
    check("torch.float32; rows travel as they are", DistributedNetwork, ring(6), wire_dtype=torch.float32)
    for timeout in (0, float("inf")):
        check(f"timeout = {timeout}; every wait is bounded, by", DistributedNetwork, ring(6), timeout=timeout)
    check(r"shape \(6, 2\); expected 3 rows, those of this process", network.mix, whole, W)
    check(r"shape \(6, 2\); expected 3 rows", network.gather, whole)
    check(r"shape \(1, 2\); expected 6 rows", network.exchange, whole[:1], ring(6))
    check("for 7 nodes; the network has 6", network.mix, whole[:3], metropolis_hastings(ring(7)))


def test_arguments_that_do_not_fit_are_refused():
    run_in_processes(2, refused)


def test_without_a_process_group():
    with pytest.raises(NetworkError, match="there is no process group; call torch"):
        DistributedNetwork(ring(4))


# --- while it is under way ---
def something_else_in_between(rank, world, X):
    """An average and a mixing under way at once, meanwhile a collective of torch and a gathering."""
    network = DistributedNetwork(complete(world), timeout=20)
    J, W, mine = uniform(network.graph), asymmetric(world, 1), X[rank : rank + 1].clone()
    for turn in range(20):
        time.sleep(0.001 * (rank == turn % world))
        average, mixing = network.start_mix(mine, J), network.start_mix(2 * mine, W)
        torch.distributed.barrier()
        everyone = network.gather(mine[:, :5])
        expected = 2 * torch.from_numpy(W.to_dense().T[rank]) @ everyone
        torch.testing.assert_close(mixing.wait()[0, :5], expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(average.wait()[0, :5], everyone.mean(dim=0), rtol=0, atol=1e-13)
        mine = mine * 1.1
    return True


def test_messages_of_several_operations_under_way_do_not_mix():
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
if dist.get_rank() % 2:
    dist.destroy_process_group()
"""


def test_a_program_that_ends_while_it_is_under_way_ends_well(tmp_path):
    """The last average of a loop that mixes early is never waited for; its thread must not outlive Python."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    torchrun(4, path)
