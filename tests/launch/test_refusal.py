"""A start that mixwise refuses in all processes is one sentence, once and last; other errors keep their traceback."""

import re

import pytest

from mixwise.launch.command import Machines, torchrun_line, worker_command
from process_pool import in_processes
from programs import run_program

pytestmark = in_processes

SCRIPT = """
import os, torch, mixwise as mw
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    raise ValueError("of the user")
except ValueError:
    if "error" == "{what}":
        raise
local_steps = int(os.environ["RANK"]) + 1 if "steps" == "{what}" else 1
try:
    mw.Gossip(model, optimizer, mw.graphs.ring({nodes}), local_steps=local_steps)
except mw.MixwiseError as error:
    if "caught" != "{what}":
        raise
    print("caught", error)
"""
NODES = "the graph has 4 nodes, but there are 2 processes; Gossip has one node per process: take a graph for 2 nodes"


@pytest.fixture
def launched(tmp_path):
    """Runs the script, or other words, in two processes, as `mixwise launch` does, or under torchrun by itself."""

    def run(what, nodes=2, words=("train.py",), by_torchrun=False):
        (tmp_path / "train.py").write_text(SCRIPT.format(what=what, nodes=nodes))
        line = torchrun_line(Machines(2), words)[1:]
        if by_torchrun:
            line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words]
        return run_program(*line, cwd=tmp_path, starts_programs=True)

    return run


@pytest.mark.parametrize(
    ("what", "nodes", "sentence"),
    [
        ("nodes", 4, f"{NODES}, or start 4 processes"),
        ("steps", 2, "rank 1 differs from rank 0: local_steps is 2 instead of 1; all processes need the same"),
    ],
)
def test_a_refused_start_is_one_sentence(what, nodes, sentence, launched):
    done = launched(what, nodes)
    assert done.returncode == 1
    assert done.stderr == f"error: {sentence}\n"


def test_under_torchrun_its_report_of_the_processes_has_the_sentence(launched):
    done = launched("nodes", 4, by_torchrun=True)
    assert done.returncode == 1
    assert done.stderr.count(f"error: {NODES}") == 1
    assert done.stderr.count(f"traceback : {NODES}") >= 1  # of those that torchrun did not end itself
    assert "mixwise/gossip" not in done.stderr  # none of our frames


def test_an_error_of_the_user_keeps_its_traceback(launched):
    done = launched("error")
    assert done.returncode == 1
    assert "ValueError: of the user" in done.stderr
    assert "Root Cause (first observed failure)" in done.stderr
    assert "torch/distributed/launcher" not in done.stderr  # torchrun has not failed


def test_an_error_that_is_caught_is_not_printed(launched):
    done = launched("caught", 4)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall("caught the graph has 4 nodes", done.stdout) == ["caught the graph has 4 nodes"] * 2


def test_a_recipe_that_is_refused_is_one_sentence(launched):
    done = launched("recipe", words=worker_command(["run", "digits", "steps=0"]))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.match("error: .*steps", line)


def test_a_single_process_shows_its_traceback(tmp_path):
    (tmp_path / "train.py").write_text("import sys, mixwise as mw\nmw.Gossip(None, None, mw.Graph(1, []))\n")
    done = run_program(tmp_path / "train.py", cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert "train.py" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("mixwise.errors.TrainingError: model is None")
