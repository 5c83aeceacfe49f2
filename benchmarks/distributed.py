"""Four gloo processes on this machine, one thread each: our gossip against DistributedDataParallel and Decent-DP.

All contenders live in the same four processes and take turns. Time per step is that of a whole training step (forward,
backward, optimizer, communication); with more processes than cores most of it is computing for everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Measurement

WORLD = 4
MODELS = {"mlp": "MLP 784-128-10", "resnet20": "ResNet-20"}
ROUNDS = {"mlp": 45, "resnet20": 9}  # a step of the MLP takes 5 ms, and single rounds scatter by a tenth


def measurements() -> list[Measurement]:
    taken = []
    for model, title in MODELS.items():
        result = run(model, ROUNDS[model])
        seconds, moved = result["seconds"], result["bytes"]
        taken.append(_per_byte(title, seconds, moved))
        for pattern, words in (("pairs", "alternating pairs"), ("complete", "complete graph")):
            taken.append(_against_decent(title, words, seconds, moved, pattern))
    return taken


def ratio(seconds: dict[str, list[float]], ours: str, theirs: str) -> float:
    """The median over the rounds of our time over theirs in the same round."""
    return median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))


def in_words(name: str, seconds: dict[str, list[float]], moved: dict[str, float]) -> str:
    """Speed and bytes of a contender."""
    return f"{1 / median(seconds[name]):.1f} steps/s, {moved[name] / 1e6:.2f} MB/step"


def _per_byte(title: str, seconds: dict[str, list[float]], moved: dict[str, float]) -> Measurement:
    value = ratio(seconds, "ring", "ddp") * moved["ddp"] / moved["ring"]
    return Measurement(
        f"{title}: ring gossip against DDP, time per byte moved", value, "×", 1.2, "lower",
        in_words("ring", seconds, moved), "DDP: " + in_words("ddp", seconds, moved),
        {"seconds": seconds, "bytes": moved, "per step": ratio(seconds, "ring", "ddp")},
    )  # fmt: skip


def _against_decent(
    title: str, words: str, seconds: dict[str, list[float]], moved: dict[str, float], pattern: str
) -> Measurement:
    theirs, name = f"decent {pattern}", f"{title}: {words}, overlapped, against Decent-DP, speed"
    if theirs not in seconds:
        return Measurement(name, None, "×", 1.0, "higher", theirs="pip install decent-dp==0.2.3")
    return Measurement(
        name, 1 / ratio(seconds, pattern, theirs), "×", 1.0, "higher",
        in_words(pattern, seconds, moved), "Decent-DP: " + in_words(theirs, seconds, moved),
    )  # fmt: skip


def run(model: str, rounds: int, *, wrap: Any = None) -> dict[str, Any]:
    """What the processes measured. `wrap(rank, command)` may start a process elsewhere, behind a slow link."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(WORLD):
            command = [sys.executable, "-m", "benchmarks.distributed_worker", model, str(rounds), folder]
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD)}
            env |= {"OMP_NUM_THREADS": "1", "LOGURU_LEVEL": "ERROR"}
            command, env = (command, env) if wrap is None else wrap(rank, command, env)
            processes.append(subprocess.Popen(command, env=env))
        try:
            codes = [process.wait(timeout=600) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"the processes ended with {codes}")
        result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text("utf-8"))
        return result
