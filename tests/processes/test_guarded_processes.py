"""Guards between real processes: the rows of a simulation, and a broken rank that is named."""

import pytest
import torch

import mixwise as mw
from builders import random_rows, simulated, stepped
from mixwise.mixing import metropolis_hastings
from mixwise.network import DistributedNetwork, GuardedNetwork, SimulatedNetwork
from mixwise.policies import AwarePairs, HeterogeneityAware, Pairs
from mixwise.tasks import random_quadratics
from planning import Planner
from process_pool import error_of, in_processes, run_in_processes

pytestmark = [in_processes, pytest.mark.timeout(200)]

TORUS = mw.graphs.torus(3, 3)
RUNS = {  # 150 numbers are sketched where only pairs send rows
    "pairs": Pairs(),
    "aware pairs": AwarePairs(2),
    "all neighbors": metropolis_hastings,
}


def trained(network, name, steps=4):
    options = {"task": random_quadratics(9, dim=150), "lr": 1e-4, "robust": "clip", "on_bad": "skip"}
    run = simulated(RUNS[name], network=network, **options)
    if 4 in network.nodes:
        run.X[4 - network.nodes.start] += 30
    stepped(run, steps)
    return run.X, run.network.figures(), run.network.traffic


def trained_here(rank, world):
    return {name: trained(DistributedNetwork(TORUS, timeout=30), name) for name in RUNS}


def test_guarded_runs_in_two_processes_are_those_of_a_simulation():
    results = run_in_processes(2, trained_here)
    for name in RUNS:
        X, figures, traffic = trained(SimulatedNetwork(TORUS), name)
        torch.testing.assert_close(torch.cat([found[name][0] for found in results]), X, rtol=0, atol=1e-12)
        assert figures["rows_clipped"] > 0
        for found in results:
            assert found[name][1:] == (figures, traffic)


def with_a_broken_row(rank, world):
    """The error of each process after the row of node 4 has become NaN; no process knows all pairs."""
    network = GuardedNetwork(DistributedNetwork(TORUS, timeout=5), on_bad="skip")
    X = random_rows(len(network.nodes), 150, seed=rank)
    W = Planner(AwarePairs(1), network).plan(0, rows=X).params[0]
    assert not W.whole
    if 4 in network.nodes:
        X[4 - network.nodes.start] = float("nan")
    return error_of(network.mix, X, W)[0]


def test_a_node_with_a_broken_row_sends_nothing_where_no_process_knows_all_weights():
    assert "node 4 would send NaN or infinity" in run_in_processes(2, with_a_broken_row)[0]


class SketchIsBroken:
    """The sketch of node 4 is NaN at step 1; its rows are not."""

    def gather(self, rows):
        if self.step == 1 and 4 in self.nodes and self.checks:
            rows = rows.index_fill(0, torch.tensor([4 - self.nodes.start]), float("nan"))
        return super().gather(rows)


class BrokenSimulation(SketchIsBroken, SimulatedNetwork):
    pass


class BrokenProcesses(SketchIsBroken, DistributedNetwork):
    pass


def gathered(network):
    """The rows after some steps, in one of which a sketch is broken."""
    task = random_quadratics(9, dim=150)
    run = stepped(simulated(HeterogeneityAware(), task=task, network=network, lr=1e-4, on_bad="skip"), 3)
    return run.X, run.network.figures()


def gathered_here(rank, world):
    return gathered(BrokenProcesses(TORUS, timeout=30))


def test_a_bad_sketch_that_all_have_gathered_is_left_out_on_all_processes():
    results, expected = run_in_processes(2, gathered_here), gathered(BrokenSimulation(TORUS))
    torch.testing.assert_close(torch.cat([found[0] for found in results]), expected[0], rtol=0, atol=1e-12)
    assert {figures["rows_stopped"] for _, figures in (*results, expected)} == {1}


def with_a_broken_buffer(rank, world, way):
    """The error of each rank after rank 1 has NaN in the statistics of its norm, or numbers that are too large."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.BatchNorm1d(40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"buffers": "averaged", "timeout": 5, "wire_dtype": torch.bfloat16 if way == "wire" else None}
    gossip = mw.Gossip(model, optimizer, mw.graphs.chain(2), "lazy-metropolis-hastings", **options)
    model(torch.randn(8, 3)).square().mean().backward()
    if rank == 1 and way == "buffer":
        model[1].running_mean[0] = float("nan")
    if rank == 1 and way == "gradient":
        model[0].weight.grad[0, 0] = 1e30
    if rank == 1 and way == "wire":
        model[0].weight.data[0, 0] = 3.4e38  # more than bfloat16 can hold
    return error_of(gossip.step)[0]


def test_poison_stops_where_it_is_and_the_rank_that_has_it_is_named():
    for way in ("buffer", "wire"):
        other, broken = run_in_processes(2, with_a_broken_buffer, way)
        assert "step 0: node 1 would send NaN or infinity" in broken
        assert other is not None
    other, broken = run_in_processes(2, with_a_broken_buffer, "gradient")
    assert "step 0: node 1 sent node 0 a row" in other
