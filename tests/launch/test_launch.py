"""`mixwise launch`: the lines it prints, and what its supervisor promises."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from builders import cases, refused
from mixwise.errors import ConfigError, NetworkError
from mixwise.launch.command import Machines, check_options, parse_master, torchrun_line, worker_command
from mixwise.launch.supervisor import supervise
from mixwise.network.board import Board
from mixwise.network.world import Processes
from process_pool import in_processes
from programs import alive, free_port, run_program, running, wait_for

THERE = ("10.0.0.1", 29500)
needs_torchft = pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed")


# --- command lines ---
@cases(
    "machines, restarts, words",
    # On one machine no other machine can take part.
    (Machines(4), 0, {"--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=rank=0"}),
    (Machines(4, master=THERE), 0, {"--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=rank=0"}),
    (Machines(2, "3", 1, THERE), 0, {"--nnodes=3", "--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=rank=1"}),
    # Machines that restart together have a rendezvous that machine 0 hosts.
    (Machines(2, "1:3", 0, THERE), 0, {"--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=is_host=true"}),
    (Machines(2, "1:3", 1, THERE), 0, {"--rdzv-endpoint=10.0.0.1:29500", "--rdzv-conf=is_host=false"}),
    (Machines(2, "3", 0, THERE), 2, {"--rdzv-conf=is_host=true", "--max-restarts=2"}),
    (Machines(2, "3", 1, THERE), 2, {"--rdzv-conf=is_host=false", "--max-restarts=2"}),
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


@cases(
    "make, words",
    (lambda: Machines(0), "at least 1 process"),
    (lambda: Machines(1, "3:1", 0, THERE), "3:1"),
    (lambda: Machines(1, "2", 2, THERE), "machines are 0 to 1"),
    (lambda: Machines(1, "2"), "--master ADDRESS:PORT"),
    (lambda: parse_master("10.0.0.1"), "10.0.0.1:29500"),
    (lambda: parse_master("10.0.0.1:0"), "1 to 65535"),
    (lambda: worker_command([]), "nothing to launch"),
    (lambda: worker_command(["digits"]), "cannot launch digits"),
    (lambda: check_options(Machines(2), ["a.py"], False, -1, 30.0), "at least 0"),
    (
        lambda: check_options(Machines(2), ["-m", "mixwise", "run"], False, 0, 30.0),
        "a recipe that loses a process is resumed",
    ),
    (lambda: check_options(Machines(2), ["a.py"], False, 0, 0.0), "above 0"),
    (lambda: check_options(Machines(2, "1:2", 0, THERE), ["a.py"], False, 0, 1.0), "number at the start"),
)
def test_a_wrong_option_is_told_with_the_rule(make, words):
    refused(ConfigError, words, make)


@pytest.mark.parametrize(
    ("on_loss", "start"),
    [("stop", "python -m mixwise.launch.torchrun"), ("continue", "mixwise launch --on-loss=continue")],
)
def test_print_shows_the_line_of_every_machine(mixwise, on_loss, start):
    options = ["--nproc-per-node", 2, "--machines", 2, "--master", "10.0.0.1:29500", "--on-loss", on_loss]
    done = mixwise("launch", "--print", *options, "--", "train.py", "--out", "a b")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(set(lines)) == 2
    assert all(line.startswith(start) and line.endswith("train.py --out 'a b'") for line in lines)


def test_a_board_whose_host_is_silent_is_given_up():
    silent = SimpleNamespace(add=lambda name, more: time.sleep(2.0))
    refused(NetworkError, "did not answer", Board(silent, "the board at 10.0.0.1:29500", answer=0.1).count, "events")


class InterruptedTestError(Exception):
    pass


def test_a_signal_ends_the_wait_for_machine_0():
    """torch's own attempt to connect would hold the signal back for as long as it lasts."""

    def interrupt(*_):
        raise InterruptedTestError

    before = signal.signal(signal.SIGALRM, interrupt)
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedTestError):
            Board.at("127.0.0.1", free_port(), 30.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 15


# --- machines that meet ---
@pytest.fixture
def script(tmp_path):
    def written(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return written


MEMBER = "from mixwise.network.membership import Membership; Membership.from_environment(600.0).await_start()"
EITHER = pytest.mark.parametrize("on_loss", ["stop", pytest.param("continue", marks=needs_torchft)])


def of_machine(here, port, on_loss, *command):
    options = ["--nproc-per-node", 1, "--machines", 2, "--machine", here, "--on-loss", on_loss]
    return ["-m", "mixwise", "launch", *options, "--master", f"127.0.0.1:{port}", "--", *command]


@in_processes
@EITHER
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_launch_that_waits_for_machine_0(script, tmp_path, on_loss, number):
    """With stop, the launcher itself waits; with continue, its worker waits for the lighthouse of machine 0."""
    with socket.create_server(("127.0.0.1", 0)) as machine_0:
        command = of_machine(1, machine_0.getsockname()[1], on_loss, script(MEMBER))
        with running([sys.executable, *command], tmp_path) as launched:
            machine_0.settimeout(200)
            machine_0.accept()[0].close()  # it asks for machine 0, which does not answer, now and later
            machine_0.close()
            launched.send_signal(number)
            printed, _ = launched.communicate(timeout=100)
            assert launched.returncode not in (0, -signal.SIGKILL), printed


@in_processes
@EITHER
def test_a_port_in_use_is_one_line(tmp_path, on_loss):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_program(*of_machine(0, port, on_loss, "train.py"), cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in done.stderr


# --- the supervisor ---
@pytest.fixture
def supervised(script, capfd):
    """Runs a script under a supervisor in this process; tells how it ended and what was printed."""

    if find_spec("torchft") is None:
        pytest.skip("torchft is not installed")

    def run(text, processes, *arguments, restarts=0):
        said = []
        code = supervise(Machines(processes), [script(text), *map(str, arguments)], 0.7, restarts, said.append)
        return SimpleNamespace(code=code, said=said, printed=capfd.readouterr().out.splitlines())

    return run


HELLO = """
import os, sys
print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
assert os.environ["MIXWISE_LIGHTHOUSES"].startswith("127.0.0.1:")
sys.stdout.write("the end")
"""


def test_output_comes_in_lines_with_the_rank(supervised):
    done = supervised(HELLO, 3)
    assert done.code == 0
    assert sorted(done.printed) == sorted(
        line for rank in range(3) for line in (f"[{rank}] {rank} {rank} 3", f"[{rank}] the end")
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


def test_a_lost_process_is_started_again_as_often_as_allowed(supervised):
    """As none has finished, the exit code is that of the workers."""
    again = supervised("import sys; sys.exit(4)", 1, restarts=2)
    assert again.code == 4
    assert sum("to join again" in said for said in again.said) == 2


def test_a_stopped_process_does_not_keep_the_launcher_waiting(supervised):
    done = supervised(
        "import os, signal; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP)",
        2,
    )
    assert done.code == 0
    assert done.said[-1] == "1 of 2 processes finished; lost: rank 1 (stopped, then ended)"


SLEEP = """
import os, pathlib, sys, time
if os.fork() == 0:
    name = "child"
else:
    name = "worker"
path = pathlib.Path(sys.argv[1], f"{name}-{os.environ['RANK']}")
path.with_suffix(".new").write_text(str(os.getpid())); path.with_suffix(".new").rename(path)
time.sleep(300)
"""


def pids(folder, launched, names):
    wait_for(lambda: all((folder / name).exists() for name in names), [launched], folder)
    return [int((folder / name).read_text()) for name in names]


@in_processes
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc, and parents by prctl")
@cases(
    "on_loss, number",
    pytest.param("continue", signal.SIGKILL, marks=needs_torchft),
    pytest.param("continue", signal.SIGTERM, marks=[needs_torchft, pytest.mark.soak]),
    ("stop", signal.SIGKILL),
)
def test_no_worker_outlives_its_launcher(script, tmp_path, on_loss, number):
    command = [sys.executable, "-m", "mixwise", "launch", "--nproc-per-node", "2", "--on-loss", on_loss, "--"]
    launched = subprocess.Popen([*command, script(SLEEP), str(tmp_path)], stderr=subprocess.PIPE, text=True)
    workers, children = [], []
    try:
        workers = pids(tmp_path, launched, ["worker-0", "worker-1"])
        children = pids(tmp_path, launched, ["child-0", "child-1"])
        launched.send_signal(number)
        if number == signal.SIGTERM:
            assert "stopped by SIGTERM" in launched.communicate(timeout=100)[1]
        assert launched.wait(100) == (128 + number if number == signal.SIGTERM else -number)
        # A kill cannot be passed on, so it reaches the workers alone.
        expected = workers + (children if number == signal.SIGTERM else [])
        wait_for(lambda: not any(map(alive, expected)), [], tmp_path, seconds=60)
    finally:
        launched.kill()
        launched.stderr.close()
        for pid in workers + children:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
