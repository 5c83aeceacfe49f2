"""`mixwise launch`: the lines it prints, what its supervisor promises, and who belongs to the next generation."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from builders import refused
from mixwise.errors import ConfigError, NetworkError
from mixwise.launch import Machines, supervise, torchrun_line, worker_command
from mixwise.launch.command import check_options, parse_master
from mixwise.launch.supervisor import FINISHED, Generations
from mixwise.network.board import Board
from mixwise.network.membership import END, Membership, check_supervised
from mixwise.network.world import Processes
from process_pool import in_processes
from programs import alive, wait_for

THERE = ("10.0.0.1", 29500)


# --- command lines ---
@pytest.mark.parametrize(
    ("machines", "restarts", "words"),
    [
        # On one machine no other machine can take part.
        (Machines(4), 0, {"--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=rank=0"}),
        (Machines(4, master=THERE), 0, {"--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=rank=0"}),
        (Machines(2, "3", 1, THERE), 0, {"--nnodes=3", "--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=rank=1"}),
        # Machines that restart together have a rendezvous that machine 0 hosts.
        (Machines(2, "1:3", 0, THERE), 0, {"--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=is_host=true"}),
        (Machines(2, "1:3", 1, THERE), 0, {"--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=is_host=false"}),
        (Machines(2, "3", 0, THERE), 2, {"--rdzv-conf=is_host=true", "--max-restarts=2"}),
        (Machines(2, "3", 1, THERE), 2, {"--rdzv-conf=is_host=false", "--max-restarts=2"}),
    ],
)
def test_the_line_of_torchrun(machines, restarts, words):
    line = torchrun_line(machines, worker_command(["run", "digits", "steps=5"]), restarts)
    assert line[:3] == ["python", "-m", "mixwise.launch.torchrun"]
    assert words <= set(line)
    assert restarts or not any("--max-restarts" in word for word in line)
    assert line[-5:] == ["-m", "mixwise", "run", "digits", "steps=5"]


def test_a_board_without_a_port_is_told(monkeypatch):
    names = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "MIXWISE_BOARD": "here"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    refused(NetworkError, "MIXWISE_BOARD=here: must be an address and a port", Processes.meet, 1.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Machines(0), "at least 1 process"),
        (lambda: Machines(1, "3:1", 0, THERE), "3:1"),
        (lambda: Machines(1, "2", 2, THERE), "machines are 0 to 1"),
        (lambda: Machines(1, "2"), "--master ADDRESS:PORT"),
        (lambda: parse_master("10.0.0.1"), "10.0.0.1:29500"),
        (lambda: parse_master("10.0.0.1:0"), "1 to 65535"),
        (lambda: worker_command([]), "nothing to launch"),
        (lambda: worker_command(["digits"]), "cannot launch digits"),
        (lambda: check_options(Machines(2), False, 1, 30.0), "--on-loss stop"),
        (lambda: check_options(Machines(2), False, 0, 0.0), "above 0"),
        (lambda: check_options(Machines(2, "1:2", 0, THERE), False, 0, 1.0), "number at the start"),
    ],
)
def test_a_wrong_option_is_told_with_the_rule(make, words):
    refused(ConfigError, words, make)


@pytest.mark.parametrize(
    ("on_loss", "start"),
    [("stop", "python -m mixwise.launch.torchrun"), ("continue", "mixwise launch --on-loss=continue")],
)
def test_print_shows_the_line_of_every_machine(mixwise, on_loss, start):
    options = ["--nproc-per-node", 2, "--machines", 2, "--master", "10.0.0.1:29500", "--on-loss", on_loss]
    done = mixwise("launch", "--print", *options, "--", "run", "digits", "--out", "a b")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(set(lines)) == 2
    assert all(line.startswith(start) and line.endswith("run digits --out 'a b'") for line in lines)


# --- the members of the next generation ---
@pytest.fixture
def board():
    return Board(dist.HashStore())


def reports(board, generation, **steps):
    for rank, step in steps.items():
        board.write(f"report/{generation}/{rank.removeprefix('r')}", [2, step])
        board.count("events", 1)


def test_survivors_continue_at_the_largest_step_without_the_dead(board):
    generations = Generations(board, 4, grace=5.0)
    assert generations.look(0.0) is None
    reports(board, 0, r0=7, r1=9)
    assert generations.look(1.0) is None  # rank 2 and rank 3 may still come
    board.write("ended/2", "killed by SIGKILL")
    reports(board, 0, r3=8)
    found = generations.look(2.0)
    assert (found.number, found.members, found.at, found.lost) == (1, (0, 1, 3), (2, 9), {2: "killed by SIGKILL"})
    assert board.read("generation/1") is not None
    assert generations.look(3.0) is None


def test_a_process_that_lives_but_is_silent_is_ended_and_left_out(board):
    generations = Generations(board, 3, grace=5.0)
    reports(board, 0, r0=3, r2=3)
    assert generations.look(1.0) is None
    assert not board.has("end/1")
    assert generations.look(6.5) is None
    assert board.has("end/1")
    board.write("ended/1", board.read("end/1"))  # its supervisor did as it was told
    found = generations.look(6.6)
    assert found.members == (0, 2)
    assert "silent" in found.lost[1]


def test_a_machine_that_is_gone_does_not_hold_up_the_others(board):
    generations = Generations(board, 3, grace=5.0)
    reports(board, 0, r0=3, r2=3)
    generations.look(0.0)
    assert generations.look(5.0 + END - 0.1) is None
    assert generations.look(5.0 + END + 0.1).members == (0, 2)


@pytest.mark.parametrize(("how", "lost"), [("exit code 1", {1, 2}), (FINISHED, {2})])
def test_a_loss_on_the_way_leads_to_the_generation_after(board, how, lost):
    """A rank that has finished is not lost."""
    generations = Generations(board, 3, grace=5.0)
    board.write("ended/1", how)
    reports(board, 0, r0=3, r2=4)
    assert generations.look(0.0).members == (0, 2)
    board.write("ended/2", "exit code 1")
    reports(board, 1, r0=4)
    found = generations.look(1.0)
    assert (found.number, found.members, set(found.lost)) == (2, (0,), lost)


def test_a_survivor_that_was_left_out_is_told(board):
    generations = Generations(board, 3, grace=0.1)
    reports(board, 0, r0=3, r2=3)
    generations.look(0.0)
    generations.look(0.2 + END)
    refused(NetworkError, "left out of generation 1", Membership(board, 1, 3, grace=0.1).reform, (3,), timeout=1.0)


def test_a_supervisor_that_forms_no_generation_is_not_waited_for_long(board, monkeypatch):
    monkeypatch.setattr("mixwise.network.membership.END", 0.1)
    refused(NetworkError, "has not formed it", Membership(board, 1, 3, grace=0.1).reform, (3,), timeout=1.0)


def test_a_board_whose_host_is_silent_is_given_up():
    silent = SimpleNamespace(add=lambda name, more: time.sleep(2.0))
    refused(NetworkError, "did not answer", Board(silent, "the board at 10.0.0.1:29500", answer=0.1).count, "events")


@pytest.mark.parametrize(("environment", "words"), [({"TORCHELASTIC_RUN_ID": "1"}, "under torchrun"), ({}, "needs a")])
def test_without_a_supervisor_continuing_after_a_loss_is_refused(monkeypatch, environment, words):
    for name in ("MIXWISE_SUPERVISED", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NetworkError, match=words) as refused:
        check_supervised()
    assert "mixwise launch --on-loss continue" in str(refused.value)


# --- the supervisor ---
@pytest.fixture
def script(tmp_path):
    def written(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return written


@pytest.fixture
def supervised(script, capfd):
    """Runs a script under a supervisor in this process; tells how it ended and what was printed."""

    def run(text, processes, *arguments, grace=5.0):
        said = []
        code = supervise(Machines(processes), [script(text), *map(str, arguments)], grace, said.append)
        return SimpleNamespace(code=code, said=said, printed=capfd.readouterr().out.splitlines())

    return run


HELLO = """
import os, sys
print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MIXWISE_SUPERVISED")))
sys.stdout.write("the end")
"""


def test_output_comes_in_lines_with_the_rank(supervised):
    done = supervised(HELLO, 3)
    assert done.code == 0
    assert sorted(done.printed) == sorted(
        line for rank in range(3) for line in (f"[{rank}] {rank} {rank} 3 1", f"[{rank}] the end")
    )
    assert done.said == ["3 of 3 processes finished"]


def test_survivors_are_never_ended_and_the_lost_are_named(supervised):
    done = supervised(
        "import os, signal, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0: sys.exit(7)\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(1); print('here')",
        3,
    )
    assert done.code == 0
    assert done.printed == ["[2] here"]
    assert done.said[-1] == "1 of 3 processes finished; lost: rank 0 (exit code 7), rank 1 (killed by SIGKILL)"


def test_if_none_finished_the_exit_code_is_that_of_the_workers(supervised):
    assert supervised("import sys; sys.exit(2)", 2).code == 2


SLEEP = """
import os, pathlib, sys, time
if os.fork() == 0:
    name = "child"
else:
    name = "worker"
path = pathlib.Path(sys.argv[1], f"{name}-{os.environ['RANK']}")
path.with_suffix(".new").write_text(str(os.getpid())); path.with_suffix(".new").rename(path)
time.sleep(60)
"""


def pids(folder, launched, names):
    wait_for(lambda: all((folder / name).exists() for name in names), [launched], folder)
    return [int((folder / name).read_text()) for name in names]


@in_processes
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc, and parents by prctl")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_no_worker_outlives_its_supervisor(script, tmp_path, number):
    command = [sys.executable, "-m", "mixwise", "launch", "--nproc-per-node", "2", "--on-loss", "continue", "--"]
    launched = subprocess.Popen([*command, script(SLEEP), str(tmp_path)], stderr=subprocess.PIPE, text=True)
    workers, children = [], []
    try:
        workers = pids(tmp_path, launched, ["worker-0", "worker-1"])
        children = pids(tmp_path, launched, ["child-0", "child-1"])
        launched.send_signal(number)
        _, said = launched.communicate(timeout=100)
        assert launched.returncode == (128 + number if number == signal.SIGTERM else -number)
        assert number == signal.SIGKILL or "stopped by SIGTERM" in said
        # A kill cannot be passed on, so it reaches the workers alone.
        expected = workers + (children if number == signal.SIGTERM else [])
        wait_for(lambda: not any(map(alive, expected)), [], tmp_path)
    finally:
        launched.kill()
        for pid in workers + children:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
