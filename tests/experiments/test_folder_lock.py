"""Two runs never write into one folder: the lock of a run folder, and what becomes of it however a run ends."""

import json
import logging
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from builders import refused
from mixwise.errors import ConfigError
from mixwise.experiments import load_run, run_experiment
from mixwise.experiments.experiment_folder import LOCK, FolderLock
from mixwise.network.world import World
from mixwise.report.page import save_page
from run_folders import planned

EXPERIMENT = planned(
    {"one": {}, "two": {}}, "name=small", steps=3, graph="ring:4", optimizer={"lr": 0.01}, policy="metropolis-hastings"
)
pytestmark = pytest.mark.usefixtures("no_pictures")


def left_behind(folder, **changes):
    """The lock of a process of this machine that is gone."""
    folder.mkdir(exist_ok=True)
    note = {"host": socket.gethostname(), "pid": 1, "since": "2024-02-29 12:00:00+00:00", "token": "another", **changes}
    (folder / LOCK).write_text(json.dumps(note))


def test_a_second_run_in_the_folder_is_refused_and_the_first_is_not_disturbed(tmp_path):
    folder, refusals = tmp_path / "run", []

    text = f"process {os.getpid()} on {re.escape(socket.gethostname())} since 20.*; wait until it has ended, or choose "

    def meanwhile(progress):
        for resume in (False, True):
            refused(ConfigError, f"{text}another folder with --out$", run_experiment, EXPERIMENT, folder, resume=resume)
            refusals.append(resume)
        assert load_run(folder).recipe.name == "small"  # but it can be looked at
        save_page([folder], tmp_path / "report.html")

    run_experiment(EXPERIMENT, folder, meanwhile)
    assert len(refusals) == 12
    assert not (folder / LOCK).exists()
    run_experiment(EXPERIMENT, tmp_path / "alone")
    for variant in ("one", "two"):
        path = f"{variant}/seed-0/metrics.jsonl"
        assert (folder / path).read_bytes() == (tmp_path / "alone" / path).read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, ConfigError])
def test_a_run_that_is_interrupted_leaves_no_lock(error, tmp_path):
    def stop(progress):
        raise error

    with pytest.raises(error):
        run_experiment(EXPERIMENT, tmp_path / "run", stop)
    assert not (tmp_path / "run" / LOCK).exists()
    run_experiment(EXPERIMENT, tmp_path / "run", resume=True)


def test_the_lock_of_a_process_that_is_gone_is_taken_over_with_a_line(tmp_path, caplog):
    left_behind(tmp_path)
    with caplog.at_level(logging.WARNING, "mixwise"):
        run_experiment(EXPERIMENT, tmp_path)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{tmp_path / LOCK} was left behind by process 1 on {socket.gethostname()} since 2024-02-29")


def test_the_lock_of_another_machine_is_left_to_the_user(tmp_path):
    left_behind(tmp_path, host="elsewhere")
    says = f"process 1 on elsewhere since .*if that run is gone, remove {tmp_path / LOCK}"
    refused(ConfigError, says, run_experiment, EXPERIMENT, tmp_path)
    assert json.loads((tmp_path / LOCK).read_text())["host"] == "elsewhere"
    (tmp_path / LOCK).unlink()
    run_experiment(EXPERIMENT, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "here"}'])
def test_a_lock_that_says_nothing_is_left_to_the_user(text, tmp_path):
    (tmp_path / LOCK).write_text(text)
    refused(ConfigError, f"if there is none, remove {tmp_path / LOCK}", run_experiment, EXPERIMENT, tmp_path)


def test_later_processes_of_the_same_run_keep_its_lock(tmp_path):
    """After a restart on another machine, or when the process that held it is lost."""
    left_behind(tmp_path, host="elsewhere", token="ours")
    lock = FolderLock(tmp_path)
    lock.token = "ours"
    lock.take(World())
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    lock.release()
    new = FolderLock(tmp_path / "new")
    new.take(World())
    new.release()
    assert list(tmp_path.iterdir()) == []  # a folder that was made for the lock only is removed with it


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_the_same_moment_one_gets_it(stale, tmp_path):
    """Open files, not processes, hold a lock of the kernel, so threads compete as processes do."""
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        if stale:
            left_behind(folder)
        start, together = threading.Barrier(8), [FolderLock(folder) for _ in range(8)]

        def take(lock, start=start):
            start.wait()
            try:
                lock.take(World())
            except ConfigError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(take, together))
        assert sum(taken) == 1
        for lock in together:
            lock.release()
        assert not (folder / LOCK).exists()
