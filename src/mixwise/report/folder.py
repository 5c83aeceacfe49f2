"""Reads what is there of a run folder: finished, half-finished or damaged, and says what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from mixwise.errors import ConfigError
from mixwise.report.results import Steps

Cache: TypeAlias = dict[tuple[Path, int, int], tuple[Steps, int]]  # lines read, by path, time and size

_SEED = re.compile(r"seed-(\d+)")
_USUAL = ("accuracy", "accuracy_worst", "distance_to_optimum", "loss", "consensus_distance", "gradient_mixing_error")


@dataclass
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    records: Steps
    scene: dict[str, Any] | None = None
    weights: Steps = field(default_factory=list)
    steps: int | None = None  # how many it will have, if known

    @property
    def done(self) -> int:
        """How many steps are recorded."""
        return int(self.records[-1]["step"]) + 1 if self.records else 0

    @property
    def finished(self) -> bool:
        """Whether nothing is missing, as far as one can tell."""
        return bool(self.records) and (self.steps is None or self.done >= self.steps)


@dataclass
class RunFolder:
    """What a folder holds, and what it lacks."""

    path: Path
    name: str
    description: str = ""
    metrics: list[str] = field(default_factory=list)
    window: int = 1
    variants: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    config: str = ""
    versions: str = ""
    command: str = ""
    problems: list[str] = field(default_factory=list)

    def of(self, variant: str) -> list[Run]:
        """The runs of a variant."""
        return [run for run in self.runs if run.variant == variant]

    @property
    def finished(self) -> bool:
        """Whether every run that was planned is there to the end."""
        return len(self.runs) == len(self.variants) * len(self.seeds) and all(run.finished for run in self.runs)


def read_folders(paths: list[Path], cache: Cache | None = None) -> list[RunFolder]:
    """One `RunFolder` per run folder; a folder of run folders, such as a sweep's, stands for those in it."""
    cache = {} if cache is None else cache
    return [read_folder(place, cache) for path in paths for place in _run_folders(path)]


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; name a folder that mixwise run has made")
    if not (path / "config.yaml").exists():
        inside = sorted(config.parent for config in path.glob("*/config.yaml"))
        if inside:
            return inside
    return [path]


def read_folder(path: Path, cache: Cache | None = None) -> RunFolder:
    """What is there; `problems` says what is not, in words."""
    cache = {} if cache is None else cache
    folder = RunFolder(path, path.resolve().name or "run")
    steps = _read_config(folder)
    found = dict(_found(path))
    planned = [(variant, seed) for variant in folder.variants for seed in folder.seeds]
    for variant, seed in [*planned, *(key for key in sorted(found) if key not in set(planned))]:
        if variant not in folder.variants:
            folder.variants.append(variant)
        if seed not in folder.seeds:
            folder.seeds.append(seed)
        place = found.get((variant, seed))
        if place is not None:
            folder.runs.append(_read_run(folder, place, variant, seed, steps.get(variant), cache))
    _tell_missing(folder, planned, set(found))
    if not folder.metrics:
        there = {name for run in folder.runs for record in run.records[-1:] for name in record}
        folder.metrics = [name for name in _USUAL if name in there]
    return folder


def _found(path: Path) -> Iterator[tuple[tuple[str, int], Path]]:
    """Every folder of a run: (variant, seed) and where it is."""
    for place in path.glob("**/seed-*"):
        seed = _SEED.fullmatch(place.name)
        if seed and place.is_dir():
            yield (place.parent.relative_to(path).as_posix(), int(seed[1])), place


# --- config.yaml ---
def _read_config(folder: RunFolder) -> dict[str, int]:
    """Fill in what the configuration says; the steps of each variant, where it says them."""
    try:
        text = (folder.path / "config.yaml").read_text("utf-8")
    except FileNotFoundError:
        folder.problems.append("config.yaml is missing, so it is not known which runs were planned")
        return {}
    except (OSError, UnicodeDecodeError):
        folder.problems.append("config.yaml cannot be read")
        return {}
    folder.config = text
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    folder.command = next((line.removeprefix("command: ") for line in comments if line.startswith("command: ")), "")
    folder.versions = next((line for line in comments if line.startswith("mixwise ")), "")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        config = None
    if not isinstance(config, dict):
        folder.problems.append("config.yaml is damaged: it is not valid YAML")
        return {}
    folder.name, folder.description = str(config.get("name", folder.name)), str(config.get("description") or "")
    folder.metrics = [str(metric) for metric in _list(config.get("metrics"))]
    folder.seeds = [seed for seed in _list(config.get("seeds")) if isinstance(seed, int)]
    window = config.get("window")
    folder.window = window if isinstance(window, int) and window > 0 else 1
    variants = config.get("variants")
    variants = variants if isinstance(variants, dict) else {}
    folder.variants = [str(name) for name in variants]
    return {
        str(name): part["steps"]
        for name, part in variants.items()
        if isinstance(part, dict) and isinstance(part.get("steps"), int)
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- one run ---
def _read_run(folder: RunFolder, place: Path, variant: str, seed: int, steps: int | None, cache: Cache) -> Run:
    name = f"{variant}, seed {seed}"
    records, damaged = _lines(place / "metrics.jsonl", cache)
    weights, damaged_weights = _lines(place / "weights.jsonl", cache)
    scene = _scene(place / "scene.json")
    run = Run(variant, seed, records, scene, weights, steps)
    if scene is not None and isinstance(scene.get("steps"), int):
        run.steps = scene["steps"]
    if damaged:
        folder.problems.append(f"{name}: {damaged} damaged line{'s' * (damaged > 1)} in metrics.jsonl, left out")
    if damaged_weights:
        folder.problems.append(f"{name}: damaged lines in weights.jsonl, left out")
    if not records:
        folder.problems.append(f"{name}: no records")
    elif not run.finished:
        folder.problems.append(f"{name}: {run.done} of {run.steps} steps")
    if scene is None:
        folder.problems.append(f"{name}: no readable scene.json, so its graph cannot be drawn")
    return run


def _scene(path: Path) -> dict[str, Any] | None:
    """The scene, if it can be drawn from."""
    try:
        scene = json.loads(path.read_text("utf-8"))
        n, edges = scene["n"], scene["edges"]
        drawable = isinstance(n, int) and all(0 <= int(i) < n and 0 <= int(j) < n for i, j in edges)
        counts = scene.get("counts")
        if counts is not None:
            drawable = drawable and len(counts) == n and {len(row) for row in counts} == {len(scene["classes"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return scene if drawable else None


def _lines(path: Path, cache: Cache) -> tuple[Steps, int]:
    """The readable lines by their steps, and how many were not; one that is being written does not count."""
    try:
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        if key not in cache:
            for old in [old for old in cache if old[0] == path]:
                del cache[old]
            cache[key] = _parsed(path.read_bytes())
        return cache[key]
    except OSError:
        return [], 0


def _parsed(data: bytes) -> tuple[Steps, int]:
    kept: Steps = []
    damaged = 0
    for line in data.splitlines(keepends=True):
        try:
            record = json.loads(line)
            step = record["step"]
            if not isinstance(step, int) or (kept and step <= kept[-1]["step"]):
                raise ValueError
            kept.append(record)
        except (ValueError, KeyError, TypeError):
            damaged += line.endswith(b"\n")
    return kept, damaged


def _tell_missing(folder: RunFolder, planned: list[tuple[str, int]], found: set[tuple[str, int]]) -> None:
    missing = [f"{variant}, seed {seed}" for variant, seed in planned if (variant, seed) not in found]
    if missing and len(missing) == len(planned):
        folder.problems.append(f"none of the {len(planned)} runs that were planned has begun")
    elif missing:
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        folder.problems.append(f"not begun: {'; '.join(missing[:6])}{more}")
    if not folder.runs and not planned:
        folder.problems.append("the folder holds no run")
