"""Estimated against actual memory of a run: 16 nodes, d = 20 million, Adam, count sketches, a checkpoint.

`python -m benchmarks.run_memory` prints both, and takes overrides of the recipe such as `local_steps=4`. It runs in a
process of its own, from a recipe to a run folder, as `mixwise run` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Measurement

RECIPE = {
    "name": "memory",
    "seeds": [0],
    "metrics": ["loss"],
    "base": {
        "graph": "ring:16",
        "steps": 3,
        "evaluate_every": 2,
        "task": {
            "kind": "classification",
            "data": {"kind": "gaussian-mixture", "options": {"dim": 1000, "samples": 4000}},
            "partition": {"kind": "iid"},
            "model": {"kind": "mlp", "options": {"sizes": [1000, 4000, 3990, 10]}},  # d = 20,008,000
            "batch": 32,
            "gradients": "loop",
        },
        "optimizer": {"kind": "adam", "lr": 1e-4},
        "policy": {"kind": "heterogeneity-aware"},
    },
    "variants": {"ha": {}},
}


def measured(*overrides: str) -> dict[str, float] | None:
    """The bytes announced and taken, and the seconds; None without /proc."""
    if not Path("/proc/self/status").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run_memory", "--here", *overrides],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measurements() -> Iterator[Measurement]:
    """The peak is within 10 % of the announcement."""
    name, bar = "16 nodes × 20 million, Adam, HA-DSGD: memory taken / announced, distance from 1", 0.1
    found = measured()
    if found is None:
        yield Measurement(name, None, "", bar, "lower")
        return
    value = abs(found["taken"] / found["announced"] - 1)
    ours, theirs = (f"{found[key] / 1e9:.2f} GB" for key in ("taken", "announced"))
    yield Measurement(name, value, "", bar, "lower", ours, f"announced: {theirs}", found)


def main(overrides: list[str]) -> None:
    from mixwise.experiments import plan_experiment, run_experiment
    from mixwise.experiments.config import Recipe
    from mixwise.experiments.memory import Need

    experiment = plan_experiment(Recipe.model_validate(RECIPE), overrides)
    heard: list[Need] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run_experiment(experiment, Path(folder) / "run", on_need=heard.append)
    found = {"taken": _memory("VmHWM"), "seconds": round(time.perf_counter() - started, 1)}
    for need in heard:
        found |= {"announced": need.total, "rows": need.row_bytes, "d": need.dim, "said": f"memory: {need}"}
        found["ratio"] = round(found["taken"] / need.total, 3)
    print(json.dumps(found))


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        main(sys.argv[2:])
    else:
        print(json.dumps(measured(*sys.argv[1:]), indent=2, ensure_ascii=False))
