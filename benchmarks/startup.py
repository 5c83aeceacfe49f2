"""How long the command line takes to answer: help, the list of recipes, shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.measure import Measurement

BAR, REPEATS = 0.7, 5  # seconds; starts of each command
COMPLETION = {"_MIXWISE_COMPLETE": "complete_bash", "COMP_WORDS": "mixwise run ", "COMP_CWORD": "2"}
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mixwise --help": (["--help"], {}),
    "mixwise recipes": (["recipes"], {}),
    "mixwise recipes digits": (["recipes", "digits"], {}),
    "completion of mixwise run": ([], COMPLETION),
}


def measurements() -> Iterator[Measurement]:
    """Each command in a process of its own, as a shell starts it; the median of several starts, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(1 + REPEATS):
        for name, (words, variables) in COMMANDS.items():
            start = time.perf_counter()
            line = [sys.executable, "-c", "from mixwise.cli import main; main()", *words]
            subprocess.run(line, env=os.environ | variables, capture_output=True, check=True)
            seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        found = median(taken[1:])  # the first one reads files from the disk
        yield Measurement(name, found, "s", BAR, "lower", f"{found:.2f} s", "", {"seconds": taken})
