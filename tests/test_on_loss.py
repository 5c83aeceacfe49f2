"""Killed and stopped processes under `mixwise launch --on-loss continue`: survivors finish, and with the right result."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hosts import Hosts, why_not
from processes import in_processes

pytestmark = in_processes

# Each rank minimizes ‖x − b_i‖² with gradient tracking, which converges to the mean of the b_i of those who take part.
# Its memory knows all ranks: kept over a loss it would lead to another point than the mean of the survivors.
GOSSIP = """
import os, signal, sys, torch, torch.distributed as dist, mixwise as mw
from mixwise.algorithms import GradientTracking
from mixwise.mixing import metropolis_hastings
graph, lost, how, timeout = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(1, 3, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gossip = mw.Gossip(model, optimizer, mw.graphs.parse(graph), policy=metropolis_hastings,
                   algorithm=GradientTracking(), on_loss="continue", timeout=timeout)
targets = torch.randn(world, 3, 1, generator=torch.Generator().manual_seed(5))
for step in range(150):
    if rank == lost and step == 50:
        os.kill(os.getpid(), getattr(signal, how))
    optimizer.zero_grad()
    ((model.weight - targets[rank]) ** 2).sum().backward()
    gossip.step()
average = gossip.average()["weight"]
optimum = targets[list(gossip.members)].mean(0)
distances = [(weight - optimum).detach().abs().max().item() for weight in (model.weight, average)]
print("result", gossip.t, gossip.members, *distances)
dist.destroy_process_group()
"""


@pytest.fixture
def launched(tmp_path):
    """Runs `mixwise launch --on-loss continue` to its end."""

    def run(*command, processes, grace=3, inside=lambda line: line, timeout=90):
        line = [sys.executable, "-m", "mixwise", "launch", "--on-loss", "continue", "--nproc-per-node", str(processes)]
        line += ["--grace", str(grace), "--", *map(str, command)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, env=environment)
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def loop(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(GOSSIP)
    return path


def results(text):
    found = [line.split("result ")[1] for line in text.splitlines() if "result " in line]
    return [(int(t), members, float(own), float(mean)) for t, members, own, mean in map(_parsed, found)]


def _parsed(line):
    t, rest = line.split(" ", 1)
    members, distances = rest.rsplit(")", 1)
    return t, members + ")", *distances.split()


@pytest.mark.parametrize(
    ("nodes", "lost", "how", "left", "said"),
    [
        (4, 2, "SIGKILL", "(0, 1, 3)", "rank 2 (killed by SIGKILL)"),  # a ring that loses one is a chain
        (3, 0, "SIGSTOP", "(1, 2)", "rank 0 (silent for 3 s, then ended)"),
    ],
)
def test_survivors_find_the_optimum_of_their_own(loop, launched, nodes, lost, how, left, said):
    done = launched(loop, f"ring:{nodes}", lost, how, 3, processes=nodes)
    assert done.code == 0, done.err
    found = results(done.out)
    assert [(t, members) for t, members, _, _ in found] == [(150, left)] * (nodes - 1)
    # 100 steps of a contraction by at most 0.8 per step, from a distance of order 1.
    assert all(own < 1e-8 and mean < 1e-8 for _, _, own, mean in found)
    assert said in done.err.splitlines()[-1]


def test_a_chain_without_its_middle_has_fallen_apart(loop, launched):
    done = launched(loop, "chain:3", 1, "SIGKILL", 3, processes=3)
    assert done.code not in (0, None)
    assert "fallen apart: 0 | 2 cannot reach each other" in done.err
    assert not results(done.out)
