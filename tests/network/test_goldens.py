"""Every algorithm, on every kind of network, gives the numbers of goldens.json: nets for changes that must not be seen.

Rewritten by `python tests/network/test_goldens.py`, which is right only where results are meant to change.
Legend: n nodes; X (n, d) the rows after the last step.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a program

from builders import faulty, random_rows
from every_algorithm import GRAPH, KNOWN_IN_PART, MH, N, quadratic_run, runs
from mixwise.network import DistributedNetwork, GuardedNetwork, SimulatedNetwork
from mixwise.network.traffic import SKETCHES
from process_pool import in_processes, run_in_processes

GOLDENS = Path(__file__).with_name("goldens.json")
STEPS, DIM = 5, 80  # shorter rows are not rounded
KINDS = ("plain", "int8", "bursts", "clip")
BURSTS = {"message_loss": 0.2, "burst": 3.0, "node_off": 0.2, "away": 2.0, "stragglers": 0.1}
# Where the last bit decides: which neighbors are learned, and weights that are fitted to a singular Γ.
LEFT_OUT = {"learned topology", "product", "alternating"}
LEFT_OUT_OF_BURSTS = {
    "ha-dsgd", "ha-dsgd, both", "ha-dsgd, alternating", "ha-dsgd, two rounds", "combine-then-adapt", "decoupled",
    "gradient tracking, aware", "momentum tracking, aware", "quasi-global", "smoothing", "nested, dropping arcs",
    "decoupled twice", "quasi-global around gradient tracking, aware",
}  # fmt: skip


def is_mixed_row_by_row(name: str) -> bool:
    """Whether the guard accepts the algorithm."""
    needs = runs()[name][0].needs
    return needs.plan in ("weights", "two channels") and not needs.fixed and needs.doubly


def cases_of(kind: str) -> list[str]:
    """The runs whose result is a matter of more than the last bit."""
    left_out = LEFT_OUT | (LEFT_OUT_OF_BURSTS if kind == "bursts" else set())
    return [name for name in runs() if name not in left_out and (kind != "clip" or is_mixed_row_by_row(name))]


def network_of(kind: str, graph, processes: bool = False):
    wire = torch.int8 if kind == "int8" else None
    if processes:
        return DistributedNetwork(graph, wire_dtype=wire, timeout=60)
    return faulty(graph, 3, **BURSTS) if kind == "bursts" else SimulatedNetwork(graph, wire_dtype=wire)


def trained(kind: str, name: str, processes: bool = False):
    """The rows after a few steps, and the bytes that were sent."""
    guard = {"robust": "clip"} if kind == "clip" else {}
    training = quadratic_run(name, lambda graph: network_of(kind, graph, processes), dim=DIM, **guard)
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.1  # these rows are longer than those of other tests
    for _ in range(STEPS):
        training.step()
    traffic = training.network.traffic
    return training.X, [traffic.parameters, traffic.sketches]


def operated(kind: str) -> list[float]:
    """What single operations of the network give in a few steps."""
    network, found = network_of(kind, GRAPH), []
    network = GuardedNetwork(network, "clip") if kind == "clip" else network
    X, messages = random_rows(N, DIM, 1), random_rows(len(GRAPH.arcs.senders), DIM, 2)
    for t in range(3):
        network.begin(t)
        rows = [network.mix(X, MH), network.exchange(messages, GRAPH).rows, network.gather(X[:, :3])]
        sketches = network.exchange(messages, GRAPH, cargo=SKETCHES)
        rows += [sketches.rows.masked_fill(torch.from_numpy(sketches.unused)[:, None], 7.0), network.average(X)[None]]
        found += [value for each in rows for value in figures(each, [])]
    return found


def figures(X: torch.Tensor, traffic: list[int]) -> list[float]:
    """Numbers that differ if any row does: two projections of X, and the bytes."""
    draws = torch.Generator().manual_seed(0)
    weights = torch.randn(2, *X.shape, generator=draws, dtype=torch.float64)
    return [*(weights * X).sum(dim=(1, 2)).tolist(), *traffic]


def all_trained(rank, world, kind):
    return {name: trained(kind, name, processes=True) for name in cases_of(kind) if name not in KNOWN_IN_PART}


@pytest.fixture(scope="module")
def goldens():
    return json.loads(GOLDENS.read_text("utf-8"))


def check(found: list[float], golden: list[float]) -> None:
    assert found == pytest.approx(golden, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in cases_of(kind)])
def test_one_process(kind, name, goldens):
    check(figures(*trained(kind, name)), goldens[kind][name])


@pytest.mark.parametrize("kind", KINDS)
def test_operations(kind, goldens):
    check(operated(kind), goldens[kind]["operations"])


@in_processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bursts"])  # faults are simulated
def test_two_processes(kind, goldens):
    first, second = run_in_processes(2, all_trained, kind)
    for name, (X, traffic) in first.items():
        check(figures(torch.cat([X, second[name][0]]), traffic), goldens[kind][name])


if __name__ == "__main__":
    found = {kind: {name: figures(*trained(kind, name)) for name in cases_of(kind)} for kind in KINDS}
    for kind in KINDS:
        found[kind]["operations"] = operated(kind)
    blocks = []
    for kind, values in found.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in values.items())
        blocks.append(f"{json.dumps(kind)}: {{\n{lines}\n}}")
    GOLDENS.write_text("{\n" + ",\n".join(blocks) + "\n}\n", "utf-8")
