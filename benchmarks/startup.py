"""How long the command line takes to answer, in a process of its own, as a shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from .measure import Benchmark, Contestant, Contestants

COMPLETION = {"_MIXWISE_COMPLETE": "complete_bash", "COMP_WORDS": "mixwise run ", "COMP_CWORD": "2"}
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mixwise --help": (["--help"], {}),
    "mixwise recipes": (["recipes"], {}),
    "mixwise recipes digits": (["recipes", "digits"], {}),
    "completion of mixwise run": ([], COMPLETION),
}


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    for name in list(COMMANDS)[:1] if tiny else COMMANDS:
        yield Benchmark(
            f"{name}: how many seconds until it answers?", partial(starts, name), 0.7, better="lower",
            limit="Python without any import", rounds=5, clock="wall",
        )  # fmt: skip


def starts(name: str) -> Contestants:
    words, variables = COMMANDS[name]

    def call(line: list[str]) -> Contestant:
        command, env = [sys.executable, *line], os.environ | variables
        return Contestant(lambda _: subprocess.run(command, env=env, capture_output=True, check=True))

    ours = ["-c", "from mixwise.cli import main; main()", *words]
    return {"mixwise": call(ours), "Python without any import": call(["-c", "pass"])}
