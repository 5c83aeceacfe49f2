"""Killed and stopped processes under `mixwise launch --on-loss continue`: the others finish with the right result."""

import re
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from builders import cases
from hosts import Hosts, why_not
from mixwise.launch import supervisor
from mixwise.launch.command import Machines
from mixwise.launch.supervisor import supervise
from process_pool import in_processes
from programs import Program, running

pytestmark = [
    in_processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed"),
]

# Each rank minimizes ‖x − b_i‖² with gradient tracking, which converges to the mean of the b_i of the present ranks.
# Its memory knows all ranks: kept over a change it would lead to another point than the mean of the present ones.
# A rank that comes back writes until when all train: for 200 mixings more.
GOSSIP = """
import os, pathlib, signal, sys, time, torch, mixwise as mw
from mixwise.algorithms import GradientTracking
from mixwise.mixing import metropolis_hastings
graph, lost, how, comes_back = sys.argv[1], int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, deadline = pathlib.Path(sys.argv[0]).parent, time.monotonic() + 200
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(1, 3, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=100_000)
gossip = mw.Gossip(model, optimizer, mw.graphs.parse(graph), policy=metropolis_hastings, algorithm=GradientTracking(),
                   elastic=True, scheduler=scheduler)
began = gossip.t
targets = torch.randn(world, 3, 1, generator=torch.Generator().manual_seed(5))

def write(name, number):
    (folder / "new").write_text(str(number))
    (folder / "new").rename(folder / name)

def written(name):
    return int((folder / name).read_text()) if (folder / name).exists() else 1_000_000

if began:
    write("end", began + 200)
while gossip.t < (written("end") if comes_back else 150):
    assert time.monotonic() < deadline
    if gossip.t == 49:
        print("running", flush=True)
    if rank == lost and gossip.t == 50 and not began:
        write("stopped", os.getpid())
        os.kill(os.getpid(), getattr(signal, how))
        began = 50
    if rank != lost and lost not in gossip.members and how == "SIGSTOP" and comes_back:
        os.kill(written("stopped"), signal.SIGCONT)
    optimizer.zero_grad()
    ((model.weight - targets[rank]) ** 2).sum().backward()
    gossip.step()
    if began == 50 and gossip.t > 52:
        began = gossip.t
        write("end", began + 200)
    time.sleep(float(os.environ.get("PAUSE", 0)))
average = gossip.average()["weight"]
optimum = targets[list(gossip.members)].mean(0)
distances = [(weight - optimum).detach().abs().max().item() for weight in (model.weight, average)]
rate = optimizer.param_groups[0]["lr"]
print("result", gossip.t, gossip.members, *distances, "began", began, "rate", round(rate / 0.1, 12))
"""


@pytest.fixture
def launched(capfd, monkeypatch):
    """Runs a command to its end under a supervisor in this process, whose workers have imported everything already."""
    monkeypatch.setattr(
        supervisor, "subprocess", SimpleNamespace(Popen=Program, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    )

    def run(*command, processes, restarts=0):
        said = []
        code = supervise(Machines(processes), list(map(str, command)), 1.0, restarts, said.append)
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err + "\n".join(said))

    return run


# The mean of all rows is taken while the gradients are computed, by the thread that hands over: X⁺ = J X − U.
# It descends on the mean of the losses, to the mean of the targets of the ranks that take part.
AVERAGING = GOSSIP.replace("metropolis_hastings", "uniform").replace("algorithm=GradientTracking()", "overlap=True")
SCRIPTS = {
    "tracking": GOSSIP,
    "averaging": AVERAGING.replace("Linear(1, 3,", "Linear(1, 20_000,").replace("(world, 3,", "(world, 20_000,"),
}


def results(text):
    """Mixings, members and the distances to the optimum that the ranks print."""
    found = re.findall(r"result (\d+) (\(.*?\)) (\S+) (\S+)", text)
    return [(int(t), members, float(own), float(mean)) for t, members, own, mean in found]


@cases(
    "script, graph, nodes, lost, how, said",
    # A ring that loses one is a chain. Rank 0, no neighbor of it, must not wait for the timeout, which is 60 s.
    ("tracking", "ring", 4, 2, "SIGKILL", "rank 2 (killed by SIGKILL)"),
    ("averaging", "complete", 3, 0, "SIGSTOP", "rank 0 (stopped, then ended)"),
    pytest.param("tracking", "ring", 3, 0, "SIGSTOP", "rank 0 (stopped, then ended)", marks=pytest.mark.soak),
    pytest.param("averaging", "complete", 4, 2, "SIGKILL", "rank 2", marks=pytest.mark.soak),
)
def test_survivors_find_the_optimum_of_their_own(tmp_path, launched, script, graph, nodes, lost, how, said):
    (tmp_path / "loop.py").write_text(SCRIPTS[script])
    done = launched(tmp_path / "loop.py", f"{graph}:{nodes}", lost, how, processes=nodes)
    assert done.code == 0, done.err
    found = results(done.out)
    left = str(tuple(rank for rank in range(nodes) if rank != lost))
    assert [(t, members) for t, members, _, _ in found] == [(150, left)] * (nodes - 1)
    # 100 steps of a contraction by at most 0.8 per step, from a distance of order 1.
    assert all(mean < 1e-8 and (own < 1e-8 or script == "averaging") for _, _, own, mean in found)
    assert said in done.err.splitlines()[-1]


# Some ranks are killed while the run starts: before the others hear of them, when they are known, and when the
# members connect. Those that are left train on, in the end all three together.
STARTING = GOSSIP.replace(
    "torch.set_default_dtype",
    """
from mixwise.network.membership import Membership
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if rank in (lost := {1: "__init__", 2: "await_start", 4: "_form"}):
    setattr(Membership, lost[rank], die)
torch.set_default_dtype""",
).replace("elastic=True", "elastic=True, timeout=8.0")
STARTING = STARTING.replace(
    "    optimizer.zero_grad()",
    """    if len(gossip.members) != 3:  # slowly, until the last healthy one is there
        time.sleep(0.5)
    optimizer.zero_grad()""",
)


def test_ranks_that_are_killed_while_starting_cost_no_healthy_rank(tmp_path, launched):
    (tmp_path / "loop.py").write_text(STARTING)
    done = launched(tmp_path / "loop.py", "ring:6", -1, "none", processes=6)
    assert done.code == 0, done.err
    found = results(done.out)
    assert [(t, members) for t, members, _, _ in found] == [(150, "(0, 3, 5)")] * 3, done.err
    assert all(own < 1e-8 for _, _, own, _ in found)
    killed = ", ".join(f"rank {rank} (killed by SIGKILL)" for rank in (1, 2, 4))
    assert f"3 of 6 processes finished; lost: {killed}" in done.err.splitlines()[-1]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_joins_again_while_the_others_train(how, tmp_path, launched):
    """It is killed and started again, or stopped for a while; then it is where the others are, and its schedule too."""
    (tmp_path / "loop.py").write_text(GOSSIP)
    done = launched(tmp_path / "loop.py", "ring:4", 0, how, "comes back", processes=4, restarts=1)
    assert done.code == 0, done.err
    found = results(done.out)
    end = int((tmp_path / "end").read_text())
    assert [(t, members) for t, members, _, _ in found] == [(end, "(0, 1, 2, 3)")] * 4
    assert all(own < 1e-8 for _, _, own, _ in found)  # the optimum of all four: what was remembered was dropped
    assert set(re.findall(r"rate (\S+)", done.out)) == {str(round(1 - 0.5 * end / 100_000, 12))}
    assert max(int(began) for began in re.findall(r"began (\d+)", done.out)) == end - 200 > 52
    assert "learning rates differ" not in done.err


BY_HAND = GOSSIP.replace(", scheduler=scheduler)", ")").replace("gossip.step()", "gossip.step(); scheduler.step()")
BY_HAND = BY_HAND.replace("100_000", "500")


@pytest.mark.soak  # the comparison is tested with make test, without a loss
def test_a_schedule_by_hand_that_has_stayed_behind_is_noticed(tmp_path, launched):
    (tmp_path / "loop.py").write_text(BY_HAND)
    done = launched(tmp_path / "loop.py", "ring:4", 1, "SIGSTOP", "comes back", processes=4)
    assert done.code == 0, done.err
    assert len(set(re.findall(r"rate (\S+)", done.out))) > 1
    assert "the learning rates differ: " in done.err


# --- several machines ---
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_machine_that_is_unplugged_is_left_behind(tmp_path):
    (tmp_path / "loop.py").write_text(GOSSIP)
    with Hosts(2) as hosts, ExitStack() as stack:

        def on_machine(here):
            options = ["--on-loss", "continue", "--nproc-per-node", 2, "--machines", 2, "--machine", here]
            command = [sys.executable, "-m", "mixwise", "launch", *options, "--master", f"{hosts.address(0)}:29500"]
            command += ["--", "loop.py", "complete:4", -1, "none"]
            return stack.enter_context(running(command, tmp_path, hosts.variables(here) | {"PAUSE": "0.03"}))

        second, first = on_machine(1), on_machine(0)  # in any order
        while "running" not in first.stdout.readline():
            assert first.poll() is None
        hosts.unplug(1)
        printed, _ = first.communicate(timeout=200)
        assert first.returncode == 0, printed
        assert [(t, members, mean < 1e-3) for t, members, _, mean in results(printed)] == [(150, "(0, 1)", True)] * 2
        assert "2 of 2 processes of machine 0 finished" in printed.splitlines()[-1]
        assert second.poll() is None  # its ranks wait for the lighthouse
