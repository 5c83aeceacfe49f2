"""Machines that come and go (`mixwise launch --machines 1:2`): rows are divided again, records are those of one."""

import re
import signal
import sys
from contextlib import ExitStack, contextmanager

import psutil
import pytest
import yaml

from mixwise.experiments import Recipe, plan_experiment, run_experiment
from mixwise.launch.command import Machines, torchrun_line
from process_pool import in_processes
from programs import free_port, run_with_hook, running, wait_for
from run_folders import approximately, read_records, small_recipe

pytestmark = [in_processes, pytest.mark.timeout(600)]

SHARED, ALONE = "nodes-0-2-of-5", "nodes-0-4-of-5"  # the rows of rank 0, with another process and without
STEPS = 120
RECIPE = small_recipe(
    {"aware": {"policy": {"kind": "heterogeneity-aware", "period": 3, "sketch": {"dim": 20}}}},
    name="elastic", metrics=["distance_to_optimum"], steps=STEPS, graph="ring:5", task={"kind": "quadratics"},
    optimizer={"lr": "0.2/L", "momentum": 0.5}, record_every=4, evaluate_every=4, checkpoint_every=4, dtype="float64",
)  # fmt: skip

# After every checkpoint, a process that is alone waits for another one, unless one is lost; until there is a file that
# tells it to hurry, two take their time as well.
PACED = run_with_hook("""hurry, lost, alone = Path("hurry"), Path("lost"), os.environ["WORLD_SIZE"] == "1"
    while alone and not hurry.exists() and not lost.exists(): time.sleep(0.1)
    if not hurry.exists(): time.sleep(1)""")


def kill(agent):
    """A machine without power: no process announces its end."""
    if agent.poll() is None:
        agent.send_signal(signal.SIGSTOP)  # so that it starts no other worker meanwhile
        for process in [*psutil.Process(agent.pid).children(), agent]:
            process.kill()
        agent.wait(60)


@contextmanager
def machine(folder, name, here, address, port):
    """What `mixwise launch` starts on a machine, with short waits for the others; gone in the end."""
    machines = Machines(1, "1:2", here, ("127.0.0.1", port))
    line = torchrun_line(machines, ["paced.py", "run", "elastic.yaml", "--timeout", "60"], max_restarts=3)
    waits = "join_timeout=200,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"
    line = [f"{word},{waits}" if word.startswith("--rdzv-conf") else word for word in line]
    command = [sys.executable, *line[1:3], f"--local-addr={address}", *line[3:]]
    with running(command, folder, {"GLOO_SOCKET_IFNAME": "lo"}, log=folder / f"{name}.log") as agent:
        try:
            yield agent
        finally:
            kill(agent)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "elastic.yaml").write_text(yaml.safe_dump(RECIPE))
    (tmp_path / "paced.py").write_text(PACED)
    return tmp_path


def checkpoint_step(folder, rows, after=0):
    """The step of a checkpoint that holds these rows in one file, if there is one after the given step."""
    steps = [
        int(re.match(r"step-(\d+)", path.name)[1])
        for path in folder.glob(f"runs/elastic/*/aware/seed-0/checkpoint/*.{rows}.*")
    ]
    return max((step for step in steps if step > after), default=None)


@pytest.mark.soak  # half a minute; lost processes of one machine are tested with make test
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc, and 127.0.0.2 is an own address")
def test_a_machine_is_lost_and_another_comes(folder, no_pictures):
    """Ranks go by addresses: the process that writes the records and would host the store is lost, and another rank
    takes its place, to which a new one comes. Neither --out nor --resume is given."""
    port = free_port()
    with ExitStack() as all_of_them:
        stays = all_of_them.enter_context(machine(folder, "stays", 0, "127.0.0.2", port))
        goes = all_of_them.enter_context(machine(folder, "goes", 1, "127.0.0.1", port))
        first = wait_for(lambda: checkpoint_step(folder, SHARED), [stays], folder)
        kill(goes)
        (folder / "lost").touch()
        alone = wait_for(lambda: checkpoint_step(folder, ALONE, after=first), [stays], folder)
        (folder / "lost").unlink()
        comes = all_of_them.enter_context(machine(folder, "comes", 1, "127.0.0.3", port))
        wait_for(lambda: checkpoint_step(folder, SHARED, after=alone), [stays], folder)
        (folder / "hurry").touch()
        assert comes.wait(200) == 0, (folder / "comes.log").read_text()
        assert stays.wait(200) == 0, (folder / "stays.log").read_text()
    (run,) = (folder / "runs" / "elastic").iterdir()
    last = sorted(path.name for path in (run / "aware" / "seed-0" / "checkpoint").glob(f"step-{STEPS:08}*"))
    assert last == [f"step-{STEPS:08}.nodes-{rows}-of-5.safetensors" for rows in ("0-2", "3-4")]

    run_experiment(plan_experiment(Recipe.model_validate(RECIPE)), folder / "undisturbed")
    assert read_records(run, "aware") == approximately(read_records(folder / "undisturbed", "aware"))
