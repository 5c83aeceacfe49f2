"""Reads a run folder, whether finished, half finished or damaged, and lists what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from mixwise.errors import ConfigError
from mixwise.report.records import Steps

Lines: TypeAlias = tuple[Steps, int]  # the readable lines of a file, and the number of damaged ones
Cache: TypeAlias = dict[Path, tuple[tuple[int, int], Lines]]  # path -> (time, size) of a file, and its lines

_SEED = re.compile(r"seed-(\d+)")
_USUAL = ("accuracy", "accuracy_worst", "distance_to_optimum", "loss", "consensus_distance", "gradient_mixing_error")
_MAX_LISTED = 6  # runs named in a message


@dataclass
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    records: Steps
    scene: dict[str, Any] | None = None
    weights: Steps = field(default_factory=list)
    steps: int | None = None  # the number of steps planned, if known

    @property
    def done(self) -> int:
        """The number of steps recorded."""
        return int(self.records[-1]["step"]) + 1 if self.records else 0

    @property
    def finished(self) -> bool:
        """Whether all planned steps are recorded, as far as the plan is known."""
        return bool(self.records) and (self.steps is None or self.done >= self.steps)


@dataclass
class RunFolder:
    """The contents of a folder; `problems` lists what is missing or damaged."""

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
        """Whether every planned run is complete."""
        return len(self.runs) == len(self.variants) * len(self.seeds) and all(run.finished for run in self.runs)


def read_folders(paths: Sequence[Path], cache: Cache | None = None) -> list[RunFolder]:
    """Read run folders; a folder of run folders, such as that of a sweep, stands for the ones inside it."""
    return [read_folder(place, cache) for path in paths for place in _run_folders(path)]


def _run_folders(path: Path) -> list[Path]:
    inside = sorted(config.parent for config in path.glob("*/config.yaml"))
    return inside if inside and not (path / "config.yaml").exists() else [path]


def read_folder(path: Path, cache: Cache | None = None) -> RunFolder:
    """Read one run folder."""
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; name a folder that mixwise run has made")
    folder = RunFolder(path, path.resolve().name or "run")
    steps = _read_config(folder)
    found = {
        (place.parent.relative_to(path).as_posix(), int(named[1])): place
        for place in path.glob("**/seed-*")
        if (named := _SEED.fullmatch(place.name)) and place.is_dir()
    }
    planned = [(variant, seed) for variant in folder.variants for seed in folder.seeds]
    for variant, seed in dict.fromkeys([*planned, *sorted(found)]):
        if variant not in folder.variants:
            folder.variants.append(variant)
        if seed not in folder.seeds:
            folder.seeds.append(seed)
        if (variant, seed) in found:
            _read_run(folder, found[variant, seed], variant, seed, steps.get(variant), {} if cache is None else cache)
    missing = [f"{variant}, seed {seed}" for variant, seed in planned if (variant, seed) not in found]
    if missing and len(missing) == len(planned):
        folder.problems.append(f"none of the {len(planned)} planned runs has started")
    elif missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        folder.problems.append(f"not started: {'; '.join(missing[:_MAX_LISTED])}{more}")
    elif not folder.runs:
        folder.problems.append("the folder contains no runs")
    if not folder.metrics:
        recorded = {name for run in folder.runs for record in run.records[-1:] for name in record}
        folder.metrics = [name for name in _USUAL if name in recorded]
    return folder


# --- config.yaml ---
def _read_config(folder: RunFolder) -> dict[str, int]:
    """Fill in the folder from its configuration; returns the number of steps of each variant, where it is given."""
    config, problem = None, "config.yaml is damaged: it is not valid YAML"
    try:
        folder.config = (folder.path / "config.yaml").read_text("utf-8")
        config = yaml.safe_load(folder.config)
    except FileNotFoundError:
        problem = "config.yaml is missing, so the planned runs are not known"
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = problem if isinstance(error, yaml.YAMLError) else "config.yaml cannot be read"
    comments = [line[1:].strip() for line in folder.config.splitlines() if line.startswith("#")]
    folder.command = next((line.removeprefix("command: ") for line in comments if line.startswith("command: ")), "")
    folder.versions = next((line for line in comments if line.startswith("mixwise ")), "")
    if not isinstance(config, dict):
        folder.problems.append(problem)
        return {}

    def value(key: str, kind: type, default: Any) -> Any:
        return config[key] if isinstance(config.get(key), kind) else default

    folder.name, folder.description = str(config.get("name", folder.name)), str(config.get("description") or "")
    folder.metrics = [str(metric) for metric in value("metrics", list, [])]
    folder.seeds = [seed for seed in value("seeds", list, []) if isinstance(seed, int)]
    folder.window = max(1, value("window", int, 1))
    variants = value("variants", dict, {})
    folder.variants = [str(name) for name in variants]
    steps = {str(name): part.get("steps") for name, part in variants.items() if isinstance(part, dict)}
    return {name: count for name, count in steps.items() if isinstance(count, int)}


# --- one run ---
def _read_run(folder: RunFolder, place: Path, variant: str, seed: int, steps: int | None, cache: Cache) -> None:
    records, damaged = _lines(place / "metrics.jsonl", cache)
    weights, damaged_weights = _lines(place / "weights.jsonl", cache)
    scene = _scene(place / "scene.json")
    if scene is not None and isinstance(scene.get("steps"), int):
        steps = scene["steps"]
    run = Run(variant, seed, records, scene, weights, steps)
    folder.runs.append(run)
    problems = {
        f"{damaged} damaged line{'s' * (damaged > 1)} in metrics.jsonl, skipped": damaged > 0,
        "damaged lines in weights.jsonl, skipped": damaged_weights > 0,
        "no records": not records,
        f"{run.done} of {run.steps} steps": bool(records) and not run.finished,
        "no readable scene.json, so its graph cannot be drawn": scene is None,
    }
    folder.problems += [f"{variant}, seed {seed}: {problem}" for problem, present in problems.items() if present]


def _scene(path: Path) -> dict[str, Any] | None:
    """The scene, if it can be drawn."""
    try:
        scene: dict[str, Any] = json.loads(path.read_text("utf-8"))
        n, edges, counts = scene["n"], scene["edges"], scene.get("counts")
        drawable = isinstance(n, int) and all(0 <= int(i) < n and 0 <= int(j) < n for i, j in edges)
        if counts is not None:
            drawable = drawable and len(counts) == n and {len(row) for row in counts} == {len(scene["classes"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return scene if drawable else None


def _lines(path: Path, cache: Cache) -> Lines:
    """The lines of a file, read again only if it has changed."""
    try:
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if path not in cache or cache[path][0] != stamp:
            cache[path] = stamp, _parsed(path.read_bytes())
    except OSError:
        return [], 0
    return cache[path][1]


def _parsed(data: bytes) -> Lines:
    """The records in a file; a last line without its end is still being written and not damaged."""
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
