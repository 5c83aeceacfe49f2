"""A small run on a busy machine: does mixwise choose the number of threads as well as a user who knows the machine?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from .measure import Benchmark, Contestant, Contestants

NEIGHBORS = 4
BUSY = "while True: pass"
ALL_THREADS = "a thread per core"


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    yield Benchmark(
        f"mixwise run digits beside {NEIGHBORS} busy processes: how much longer than with one thread?",
        partial(runs, tiny), 2.0, "one thread", better="lower", rounds=5, unit="s ",
    )  # fmt: skip


def runs(tiny: bool) -> Contestants:
    cores = str(os.cpu_count())
    return {
        "mixwise": Contestant(partial(seconds, tiny, {})),
        "one thread": Contestant(partial(seconds, tiny, {"OMP_NUM_THREADS": "1"})),
        ALL_THREADS: Contestant(partial(seconds, tiny, {"OMP_NUM_THREADS": cores})),
    }


def seconds(tiny: bool, variables: dict[str, str], turn: int) -> float:
    """Return the wall-clock seconds of the run, started by a process that measures nothing else."""
    changes = ["variants=auto", "steps=2"] if tiny else ["seeds=0"]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
    timed = "import sys, time; start = time.perf_counter(); from mixwise.cli import main; sys.argv = sys.argv[1:]\n"
    timed += "try: main()\nexcept SystemExit: pass\nprint('seconds', time.perf_counter() - start)"
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(1 if tiny else NEIGHBORS)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", timed, "mixwise", "run", "digits", *changes, "--out", f"{folder}/run"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return float(done.stdout.rsplit("seconds", 1)[1])
