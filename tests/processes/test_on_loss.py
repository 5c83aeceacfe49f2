"""Killed and stopped processes under `mixwise launch --on-loss continue`: survivors finish, with the right result."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from hosts import Hosts, why_not
from mixwise.experiments import load_recipe, plan_experiment, run_experiment
from mixwise.launch import Machines, supervise, workers
from mixwise.tasks import random_quadratics
from mixwise.training.checkpoint import names_of_nodes, read_checkpoint
from process_pool import in_processes
from programs import Program, run_with_hook, running
from run_folders import read_records

pytestmark = [in_processes, pytest.mark.timeout(600)]

# Each rank minimizes ‖x − b_i‖² with gradient tracking, which converges to the mean of the b_i of those who take part.
# Its memory knows all ranks: kept over a loss it would lead to another point than the mean of the survivors.
GOSSIP = """
import os, signal, sys, time, torch, torch.distributed as dist, mixwise as mw
from mixwise.algorithms import GradientTracking
from mixwise.mixing import metropolis_hastings
graph, lost, how, timeout = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
held = dist.group.WORLD  # a program may hold on to the group; its connections must close all the same
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(1, 3, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gossip = mw.Gossip(model, optimizer, mw.graphs.parse(graph), policy=metropolis_hastings,
                   algorithm=GradientTracking(), on_loss=os.environ.get("ON_LOSS", "continue"), timeout=60)
targets = torch.randn(world, 3, 1, generator=torch.Generator().manual_seed(5))
for step in range(150):
    if step == 49:  # all are under way: who is slow to start on a busy machine is not silent
        gossip.network.transport.timeout = timeout
        print("running", flush=True)
    if rank == lost and step == 50:
        os.kill(os.getpid(), getattr(signal, how))
    optimizer.zero_grad()
    ((model.weight - targets[rank]) ** 2).sum().backward()
    gossip.step()
    time.sleep(float(os.environ.get("PAUSE", 0)))
average = gossip.average()["weight"]
optimum = targets[list(gossip.members)].mean(0)
distances = [(weight - optimum).detach().abs().max().item() for weight in (model.weight, average)]
print("result", gossip.t, gossip.members, *distances)
dist.destroy_process_group()
"""


def end_of(process, timeout=300):
    """How a process ended, and what it printed."""
    printed, _ = process.communicate(timeout=timeout)
    return SimpleNamespace(code=process.returncode, printed=printed)


@pytest.fixture
def launched(capfd, monkeypatch):
    """Runs a command to its end under a supervisor in this process, whose workers have imported everything already."""
    monkeypatch.setattr(
        workers, "subprocess", SimpleNamespace(Popen=Program, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    )

    def run(*command, processes, grace=20.0):
        said = []
        code = supervise(Machines(processes), list(map(str, command)), grace, said.append)
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err + "\n".join(said))

    return run


# The mean of all rows is taken while the gradients are computed, by the thread that hands over: X⁺ = J X − U.
# It descends on the mean of the losses, to the mean of the targets of those who take part.
AVERAGING = GOSSIP.replace("metropolis_hastings", "uniform").replace("algorithm=GradientTracking()", "overlap=True")
SCRIPTS = {
    "tracking": GOSSIP,
    "averaging": AVERAGING.replace("Linear(1, 3,", "Linear(1, 20_000,").replace("(world, 3,", "(world, 20_000,"),
}


def results(text):
    """Mixings, members and the distances to the optimum that the ranks print."""
    found = re.findall(r"result (\d+) (\(.*?\)) (\S+) (\S+)", text)
    return [(int(t), members, float(own), float(mean)) for t, members, own, mean in found]


@pytest.mark.parametrize(
    ("script", "graph", "nodes", "lost", "how", "said"),
    [
        # A ring that loses one is a chain. Rank 0, no neighbor of it, must not wait for the timeout.
        ("tracking", "ring", 4, 2, "SIGKILL", "rank 2 (killed by SIGKILL)"),
        ("tracking", "ring", 3, 0, "SIGSTOP", "rank 0 (silent for 4 s, then ended)"),
        ("averaging", "complete", 4, 1, "SIGSTOP", "rank 1 (silent for 4 s, then ended)"),
        pytest.param("averaging", "complete", 4, 2, "SIGKILL", "rank 2", marks=pytest.mark.soak),
    ],
)
def test_survivors_find_the_optimum_of_their_own(tmp_path, launched, script, graph, nodes, lost, how, said):
    (tmp_path / "loop.py").write_text(SCRIPTS[script])
    timeout, grace = (60, 20) if how == "SIGKILL" else (3, 4)
    done = launched(tmp_path / "loop.py", f"{graph}:{nodes}", lost, how, timeout, processes=nodes, grace=grace)
    assert done.code == 0, done.err
    found = results(done.out)
    left = str(tuple(rank for rank in range(nodes) if rank != lost))
    assert [(t, members) for t, members, _, _ in found] == [(150, left)] * (nodes - 1)
    # 100 steps of a contraction by at most 0.8 per step, from a distance of order 1.
    assert all(mean < 1e-8 and (own < 1e-8 or script == "averaging") for _, _, own, mean in found)
    assert said in done.err.splitlines()[-1]


# --- recipes ---
RECIPE = ["quadratics", "variants=dsgd-metropolis", "algorithm=gradient-tracking", "task.noise=0", "task.dim=3"]
RECIPE += ["graph=ring:6", "seeds=10", "steps=700", "record_every=50", "evaluate_every=50", "checkpoint_every=100"]
RECIPE += ["optimizer.lr=0.1/L"]


# Process 0 is killed after the first checkpoint.
KILLED = run_with_hook('if os.environ["RANK"] == "0": os.kill(os.getpid(), signal.SIGKILL)')


def test_a_recipe_continues_without_the_process_that_wrote_its_records(launched, tmp_path, monkeypatch, no_pictures):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "killed.py").write_text(KILLED)
    done = launched("killed.py", "run", *RECIPE, "--out", "run", processes=3)
    folder = tmp_path / "run" / "dsgd-metropolis" / "seed-10"
    assert done.code == 0, done.err
    assert "2 of 3 processes finished; lost: rank 0 (killed by SIGKILL)" in done.err.splitlines()[-1]
    assert "nodes 0-1 are lost; 4 continue at step" in done.err
    assert "[1] quadratics: " in done.out  # another one prints the table

    records = read_records(tmp_path / "run", "dsgd-metropolis", 10)
    told = [record["step"] for record in records if "lost_nodes" in record]
    assert len(told) == 1
    assert [record["step"] for record in records if record.get("nodes") == 4] == [
        record["step"] for record in records if record["step"] >= told[0]
    ]
    assert records[-1]["step"] == 699
    # The survivors' mean objective has its minimum at −(Σ AᵀA)⁻¹ Σ Aᵀb over nodes 2 to 5.
    task, left = random_quadratics(6, 3, 0.0, 10), [2, 3, 4, 5]
    stacked = torch.cat(list(task.A[left])), torch.cat(list(task.b[left]))
    optimum = torch.linalg.lstsq(stacked[0], -stacked[1]).solution
    assert names_of_nodes(folder / "checkpoint", 700) == left
    rows = read_checkpoint(folder / "checkpoint")[0]["rows/X"]
    assert torch.allclose(rows, optimum.expand(4, -1), rtol=0, atol=1e-4)  # 0.979 per step, for 500 or more
    assert records[-1]["distance_to_optimum"] == pytest.approx(
        float((rows - optimum).square().sum(1).mean()), abs=1e-12
    )
    assert not torch.allclose(task.optimum, optimum, rtol=0, atol=1e-2)  # that of all six is another one

    # It can be resumed, here with more steps, by a simulation of the nodes that are left.
    longer = [*RECIPE[1:], "steps=702"]
    experiment = plan_experiment(load_recipe("quadratics"), longer)
    (tmp_path / "run" / "config.yaml").write_text(experiment.to_yaml())
    run_experiment(experiment, tmp_path / "run", resume=True)
    assert len(read_checkpoint(folder / "checkpoint", step=702)[0]["rows/X"]) == 4


# --- several machines ---


@pytest.fixture
def machines(tmp_path):
    if why_not() is not None:
        pytest.skip(why_not())
    (tmp_path / "loop.py").write_text(GOSSIP)
    with Hosts(2) as hosts:
        yield hosts


def on_machine(hosts, here, folder, processes, on_loss):
    """Start the loop by `mixwise launch` on a machine, with a pause after every step."""
    options = ["--on-loss", on_loss, "--grace", 5, "--nproc-per-node", processes, "--machines", 2, "--machine", here]
    command = ["loop.py", f"complete:{2 * processes}", -1, "nobody", 4]
    line = [
        sys.executable,
        "-m",
        "mixwise",
        "launch",
        *options,
        "--master",
        f"{hosts.address(0)}:29500",
        "--",
        *command,
    ]
    return running(line, folder, hosts.variables(here) | {"ON_LOSS": on_loss, "PAUSE": "0.03"})


@pytest.mark.soak
def test_two_machines_without_a_loss(machines, tmp_path):
    with on_machine(machines, 0, tmp_path, 1, "stop") as first, on_machine(machines, 1, tmp_path, 1, "stop") as second:
        for done in (end_of(first), end_of(second)):
            assert done.code == 0, done.printed
            ((t, members, own, _),) = results(done.printed)
            assert (t, members) == (150, "(0, 1)")
            assert own < 1e-8


def test_a_machine_that_is_unplugged_is_left_behind(machines, tmp_path):
    first, second = (on_machine(machines, here, tmp_path, 2, "continue") for here in (0, 1))
    with first as first, second as second:
        while "running" not in first.stdout.readline():
            assert first.poll() is None, end_of(first)
        machines.unplug(1)
        stays, goes = end_of(first), end_of(second)
    assert stays.code == 0, stays.printed
    assert [(t, members, mean < 1e-3) for t, members, _, mean in results(stays.printed)] == [(150, "(0, 1)", True)] * 2
    assert "lost: rank 2 (" in stays.printed.splitlines()[-1]
    assert "rank 3 (" in stays.printed.splitlines()[-1]
    assert goes.code not in (0, None)
    assert "without the supervisor that hosts it the run cannot continue" in goes.printed
