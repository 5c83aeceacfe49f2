"""Four gloo processes on this machine, one thread each: DistributedDataParallel and Decent-DP.

All contestants live in the same four processes and take turns there. A step is a whole training step (forward,
backward, optimizer, communication); with more processes than cores, most of it is computing for all of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from .measure import Benchmark, Contestant, Contestants, Missing, in_a_process, last_line

WORLD = 4
TITLES = {"mlp": "MLP 784-128-10", "resnet20": "ResNet-20"}
DECENT = "pip install decent-dp==0.2.3"


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    yield from of_model("mlp", 1 if tiny else 45)  # a step takes 5 ms, and single rounds scatter by a tenth


def large(tiny: bool = False) -> Iterator[Benchmark]:
    """Nine turns of eight contestants take some minutes."""
    yield from of_model("resnet20", 1 if tiny else 9)


def of_model(model: str, rounds: int) -> Iterator[Benchmark]:
    shared = lru_cache(1)(partial(run, model, rounds))  # one run answers all questions

    def question(text: str, names: Mapping[str, str], bar: float, against: str, **options: Any) -> Benchmark:
        make = partial(contestants, shared, names, per_byte="byte" in text)
        return Benchmark(
            f"{TITLES[model]}, 4 processes: {text}", make, bar, against, limit=names.get("local"), rounds=rounds,
            clock="wall", **options,
        )  # fmt: skip

    local = {"local": "no communication"}
    ring = {"ring": "mixwise, ring", "ddp": "DDP"}
    yield question("time per byte moved, ring gossip beside DDP?", ring, 1.2, "DDP", better="lower")
    for pattern, words in (("pairs", "alternating pairs"), ("complete", "complete graph")):
        names = {pattern: "mixwise", f"decent {pattern}": "Decent-DP", "ddp": "DDP"} | local
        yield question(f"a step, {words}, overlapped: not slower than Decent-DP?", names, 1.0, "Decent-DP")


def contestants(shared: Callable[[], Any], names: Mapping[str, str], per_byte: bool) -> Contestants:
    """The turns that the processes took, played back."""
    seconds, moved = shared()["seconds"], shared()["bytes"]

    def contestant(key: str) -> Contestant | Missing:
        if key not in seconds:
            return Missing(DECENT)
        unit = moved[key] / 1e6 if per_byte else 1.0  # seconds per MB
        return Contestant(lambda i: seconds[key][i % len(seconds[key])] / unit, own_clock=True)

    return {name: contestant(key) for key, name in names.items()}


def run(model: str, rounds: int, *, wrap: Callable[[int], Mapping[str, Any]] = lambda _: {}) -> dict[str, Any]:
    """The measurements of the processes. `wrap(rank)` may start a process elsewhere, behind a slow link."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            in_a_process(
                "distributed_worker", model, str(rounds), folder, RANK=str(rank), WORLD_SIZE=str(WORLD),
                LOCAL_WORLD_SIZE=str(WORLD), LOGURU_LEVEL="ERROR", **wrap(rank),
            )
            for rank in range(WORLD)
        ]  # fmt: skip
        for rank in ranks:
            last_line(rank)
        result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text("utf-8"))
        return result
