"""Rows that really travel: the same as in a simulation, every byte counted, every wait bounded."""

import time
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

import builders
from builders import cases, random_rows
from mixwise.algorithms import Quantize, TopK
from mixwise.errors import MixwiseError, NetworkError, TrainingError
from mixwise.graphs import Graph, complete, random_connected, ring, star
from mixwise.mixing import MixingMatrix, clique_averaging, metropolis_hastings, uniform, uniform_sender
from mixwise.network import DistributedNetwork, SimulatedNetwork, block
from mixwise.network.routes import Router
from process_pool import Others, in_processes, run_in_processes
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


# --- mixing ---
MATRICES = {
    "asymmetric 4": asymmetric(4),
    "asymmetric 9": asymmetric(9),
    "one heavy node": metropolis_hastings(star(7)),
    "ring 5": metropolis_hastings(ring(5)),
    "two pairs of six": clique_averaging([(0, 5), (1, 4)], complete(6)),
    "no edge": MixingMatrix.from_dense(np.eye(4), ring(4)),
    "directed": uniform_sender(
        Graph(6, [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (3, 0)], directed=True)
    ),
    "many": metropolis_hastings(random_connected(40, 0.2, seed=1)),
}


def mixed(network, X, W, way, start):
    """The owned rows of Wᵀ X, or of start + (W − I)ᵀ X; the rows that were sent stay as they are unless in place."""
    mine = own(X, network)
    if way == "scattered":  # its numbers do not lie beside each other
        mine = torch.stack([mine, -mine], dim=2)[:, :, 0]
    if way == "moved":
        target = own(start, network)
        network.start_mix(mine, W).move(target)
        return target
    out = network.mix(mine, W, out=mine if way == "in place" else None)
    assert (out is mine) == (way == "in place")
    assert way == "in place" or torch.equal(mine, own(X, network))
    return out


def rows_and_start(W, d, dtype):
    return random_rows(W.n, d, dtype=dtype), W, random_rows(W.n, d, seed=1, dtype=dtype)


def mixed_here(rank, world, cases, way):
    results = []
    for case in cases:
        (X, W, start), network = rows_and_start(*case), DistributedNetwork(case[0].graph, timeout=20)
        results.append((mixed(network, X, W, way, start), network.traffic))
    return results


@pytest.mark.numerics
@pytest.mark.parametrize("way", ["apart", "in place", "scattered", "moved"])
def test_mixing_is_that_of_a_simulation_in_any_division(way):
    """To the last bit, for any number of processes, and Wᵀ X to rounding."""
    widths = [1, 7, 8_200]  # the longest travel without being packed
    cases = [(W, d, DOUBLE) for W in MATRICES.values() for d in widths]
    cases += [(MATRICES["asymmetric 4"], 150_000, dtype) for dtype in (SINGLE, DOUBLE)]  # several blocks of columns
    results = {world: run_in_processes(world, mixed_here, cases, way) for world in (1, 2, 3, 4)}
    for number, case in enumerate(cases):
        (X, W, start), simulated = rows_and_start(*case), SimulatedNetwork(case[0].graph)
        expected = mixed(simulated, X, W, way, start)
        exact = torch.from_numpy(W.to_dense().T) @ X.double() + (start.double() - X.double()) * (way == "moved")
        torch.testing.assert_close(expected.double(), exact, rtol=0, atol=1e-14 if case[2] == DOUBLE else 2e-6)
        for parts in results.values():
            assert torch.equal(torch.cat([part[number][0] for part in parts]), expected)
            assert all(part[number][1] == simulated.traffic for part in parts)


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


# --- exchange, gather, average ---
def exchanged(rank, world, cases):
    results = []
    for graph, d, cargo in cases:
        network, messages = DistributedNetwork(graph, timeout=20), random_rows(len(graph.arcs.senders), d)
        mine = torch.from_numpy(np.isin(graph.arcs.senders, network.nodes))
        results.append((network.exchange(messages[mine], graph, cargo=cargo), network.traffic))
    return results


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_an_exchange_is_that_of_a_simulation(world):
    graphs = [ring(5), star(6), complete(4), random_connected(9, 0.4, seed=2), MATRICES["directed"].graph]
    graphs.append(Graph(6, [(5, 0), (4, 0)], directed=True))  # most of them send nothing
    cases = [(graph, d, cargo) for graph in graphs for d, cargo in ((2, "sketches"), (8_200, "parameters"))]
    results = run_in_processes(world, exchanged, cases)
    for number, (graph, d, cargo) in enumerate(cases):
        simulated = SimulatedNetwork(graph)
        expected = simulated.exchange(random_rows(len(graph.arcs.senders), d), graph, cargo=cargo)
        assert torch.equal(torch.cat([part[number][0] for part in results]), expected)
        assert all(part[number][1] == simulated.traffic for part in results)


def gathered_and_averaged(rank, world, X):
    network = DistributedNetwork(ring(len(X)), timeout=20)
    with network.traffic.pause():
        network.gather(own(X, network))
    return network.gather(own(X, network)), network.average(own(X, network)), network.traffic


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("d", "dtype"), [(1, DOUBLE), (3, SINGLE), (30_001, SINGLE)])
def test_gather_and_average_are_the_same_on_every_process(world, d, dtype):
    X, simulated = random_rows(7, d, dtype=dtype), SimulatedNetwork(ring(7))
    expected = simulated.gather(X), simulated.average(X)
    results = run_in_processes(world, gathered_and_averaged, X)
    for everything, average, traffic in results:
        assert torch.equal(everything, expected[0])
        assert torch.equal(average, results[0][1])  # to the last bit
        torch.testing.assert_close(average, expected[1])
        assert traffic == simulated.traffic


# --- what is really sent ---
@contextmanager
def counting():
    """Yield a list of the bytes of each message that is given to torch.distributed for sending."""
    sizes, isend = [], dist.isend

    def counted_isend(tensor, *args, **kwargs):
        sizes.append(tensor.numel() * tensor.element_size())
        return isend(tensor, *args, **kwargs)

    with patch.object(dist, "isend", counted_isend):
        yield sizes


def counted(rank, world, W, X, wire_dtype):
    with counting() as sizes:
        network = DistributedNetwork(W.graph, timeout=20, wire_dtype=wire_dtype)
        mine, start = own(X, network), sum(sizes)
        network.mix(mine, W)
        mixing = sum(sizes) - start
        mine_of = np.isin(W.graph.arcs.senders, network.nodes)
        network.exchange(random_rows(int(mine_of.sum()), 6), W.graph)
        network.gather(mine)
        network.average(mine)
    return mixing, sum(sizes) == network.sent, network.sent - start, network.traffic


@pytest.mark.parametrize(("wire", "size"), [(None, 4), (torch.bfloat16, 2), (torch.int8, 1)])
def test_with_one_node_per_process_the_bytes_sent_are_those_of_the_nodes(wire, size):
    W, d = metropolis_hastings(Graph(4, [(0, 1), (1, 2), (2, 3), (1, 3)])), 700
    scales = 3 * 4 if wire == torch.int8 else 0  # one for each block of 256 numbers
    results = run_in_processes(4, counted, W, random_rows(4, d, dtype=SINGLE), wire)
    for rank, (mixing, all_counted, _, traffic) in enumerate(results):
        assert all_counted
        assert mixing == len(W.graph.neighbors(rank)) * (d * size + scales)
        assert traffic.parameters + traffic.sketches == sum(sent for _, _, sent, _ in results)
    assert sum(mixing for mixing, *_ in results) == W.messages * (d * size + scales)


def travels(W, world):
    """The rows that each process sends: (row, process) pairs, each once."""
    blocks = [block(W.n, rank, world) for rank in range(world)]
    owner = {node: rank for rank, nodes in enumerate(blocks) for node in nodes}
    pairs = {(int(i), owner[j]) for i, j in W.edge_weights}
    return [sum(owner[i] == rank != to for i, to in pairs) for rank in range(world)]


def compressed(rank, world, W, X, compressor):
    network = DistributedNetwork(W.graph, timeout=20)
    packing, sent = compressor(own(X, network), network.nodes, 3), network.sent
    q = packing.rows
    with counting() as sizes:
        apart = network.mix(q, W, packing=packing)
        mixed = network.mix(q, W, out=q, packing=packing)
    assert sum(sizes) == network.sent - sent
    assert torch.equal(mixed, apart)
    return mixed, sum(sizes), packing.width, network.traffic


@pytest.mark.parametrize("compressor", [TopK(0.1), TopK(1.0), Quantize(4), Quantize(1)], ids=lambda c: str(vars(c)))
@pytest.mark.parametrize(("n", "world", "d"), [(4, 4, 700), (9, 3, 90), (5, 2, 40_000)])
def test_compressed_rows_travel_compressed_and_arrive_to_the_last_bit(n, world, d, compressor):
    """The same rows as in a simulation, where nothing travels, and the bytes that are counted there."""
    W, X = asymmetric(n), random_rows(n, d)
    simulated = SimulatedNetwork(W.graph)
    packing = compressor(X.clone(), range(n), 3)
    for _ in range(2):
        expected = simulated.mix(packing.rows, W, packing=packing)
    results = run_in_processes(world, compressed, W, X, compressor)
    torch.testing.assert_close(torch.cat([part[0] for part in results]), expected, rtol=0, atol=1e-13)
    for (_, sent, width, traffic), rows in zip(results, travels(W, world), strict=True):
        assert sent == 2 * width * rows
        assert traffic == simulated.traffic
        assert width == packing.width


PAIRS = clique_averaging([(0, 1), (2, 3)], ring(4))


@pytest.mark.parametrize(("W", "world"), [(asymmetric(8), 2), (asymmetric(9), 4), (asymmetric(5), 3), (PAIRS, 2)])
def test_a_row_travels_once_to_every_other_process_that_needs_it(W, world):
    results = run_in_processes(world, counted, W, random_rows(W.n, 50), None)
    assert [mixing for mixing, *_ in results] == [rows * 50 * 8 for rows in travels(W, world)]
    assert all(all_counted for _, all_counted, _, _ in results)


def rounded(rank, world, W, X, wire_dtype):
    network = DistributedNetwork(W.graph, timeout=20, wire_dtype=wire_dtype)
    mine = own(X, network)
    packing = TopK(0.1)(mine, network.nodes, 0)
    moved, in_place = torch.zeros_like(mine), mine.clone()
    network.start_mix(mine, W).move(moved)
    network.mix(in_place, W, out=in_place)
    arcs = X[[i for i in W.graph.arcs.senders.tolist() if i in network.nodes]]
    return (
        network.mix(mine, W), in_place, moved, network.exchange(arcs, W.graph), network.mix(mine[:, :3], W),
        network.mix(packing.rows, W, packing=packing), network.traffic.parameters,
    )  # fmt: skip


@pytest.mark.numerics
@pytest.mark.parametrize("wire", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("n", "world", "d"), [(4, 4, 700), (5, 2, 20_000)])
def test_rounded_rows_arrive_as_in_a_simulation(n, world, d, wire):
    """Bit for bit; compressed rows and short ones travel as they are."""
    W, X = asymmetric(n), random_rows(n, d, dtype=SINGLE)
    simulated, packing, moved = SimulatedNetwork(W.graph, wire_dtype=wire), TopK(0.1)(X, range(n), 0), X.clone().zero_()
    simulated.start_mix(X, W).move(moved)
    mixed = simulated.mix(X, W)
    arcs = simulated.exchange(X[W.graph.arcs.senders.tolist()], W.graph)
    expected = [mixed, simulated.mix(X, W), moved, arcs, simulated.mix(X[:, :3], W)]
    expected.append(simulated.mix(packing.rows, W, packing=packing))
    results = run_in_processes(world, rounded, W, X, wire)
    for place, rows in enumerate(expected):
        assert torch.equal(torch.cat([part[place] for part in results]), rows), place
    assert {part[-1] for part in results} == {simulated.traffic.parameters}


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
    try:
        DistributedNetwork(graph, timeout=20, wire_dtype=wire)
    except TrainingError as error:
        return str(error)
    return None


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


# --- the calls that nccl gets ---
def in_batches(rank, world, X):
    network = DistributedNetwork(complete(world), timeout=20)
    network.transport.batched = True  # gloo understands batches too
    mine, even, usual = own(X, network), uniform(network.graph), metropolis_hastings(network.graph)
    found = [network.mix(mine, even), network.start_mix(mine, even).wait(), network.average(mine)[None]]
    found += [network.mix(mine[:, :50], usual), network.start_mix(mine[:, :50], usual).wait()]
    return found, network.gather(mine[:, :3]), network.exchange(mine[:, :2].repeat(world - 1, 1), network.graph)


def test_messages_of_a_round_in_one_batch():
    """What runs under nccl, on gloo: there is no GPU in the default test run."""
    X = random_rows(4, 30_001)
    for rank, (means, gathered, exchanged) in enumerate(run_in_processes(4, in_batches, X)):
        for mean in means:
            torch.testing.assert_close(mean, X.mean(dim=0)[None, : mean.shape[1]], rtol=0, atol=1e-13)
        assert torch.equal(gathered, X[:, :3])
        assert torch.equal(exchanged, X[[other for other in range(4) if other != rank], :2])


LONG = 20_002  # numbers; shorter rows are sent to all as they are


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
