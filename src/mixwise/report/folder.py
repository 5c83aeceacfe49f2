"""Reads a run folder, whether finished, half finished or damaged, and lists what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mixwise.errors import ConfigError
from mixwise.report.divergence import Divergence, read_divergence
from mixwise.report.records import Steps
from mixwise.storage import contents, parsed_yaml, text, unsealed

Lines: TypeAlias = tuple[Steps, int]  # the readable lines of a file, and the number of damaged ones
Cache: TypeAlias = dict[Path, tuple[tuple[int, int], Lines]]  # path -> (time, size) of a file, and its lines

_SEED = re.compile(r"seed-(\d{1,18})")
_USUAL = ("accuracy", "accuracy_worst", "distance_to_optimum", "loss", "consensus_distance", "gradient_mixing_error")
_DEEPEST = 3  # folders to that of a seed, such as topology/variant
_MAX_LISTED = 6  # runs named in a message
_MAX_PLANNED = 100_000  # runs of a folder
_MAX_FILE = 1 << 30  # bytes of a file that is read as a whole
_LIMIT = 2**53  # up to which whole numbers and floats are the same
Natural = Annotated[int, Field(ge=0, lt=_LIMIT)]


# --- the forms of the files ---
class Line(BaseModel):
    """A line of a .jsonl file, without its checksum."""

    model_config = ConfigDict(extra="allow")
    step: Annotated[int, Field(strict=True, ge=0, lt=_LIMIT)]


class RecordLine(Line):
    """A line of metrics.jsonl or timings.jsonl."""

    __pydantic_extra__: dict[str, Annotated[int, Field(gt=-_LIMIT, lt=_LIMIT)] | float | str | bool | None]


class Scene(BaseModel):
    """scene.json, with all that a picture needs checked."""

    model_config = ConfigDict(extra="allow")
    n: Annotated[int, Field(ge=1, le=10**6)]
    edges: list[tuple[int, int]]
    directed: bool = False
    labels: list[str] | None = None
    positions: list[tuple[float, float]] | None = None
    counts: list[list[Natural]] | None = None
    classes: list[str] | None = None
    steps: Natural | None = None
    steps_per_epoch: float | None = None
    row_bytes: float | None = None
    of: Annotated[int, Field(ge=1, lt=_LIMIT)] | None = None  # all nodes, if these are a part of them
    degrees: list[Natural] | None = None  # how many of them have degree 0, 1, …

    @model_validator(mode="after")
    def _fits(self) -> Scene:
        sizes = {len(row) for row in self.counts or ()}
        shapes = self.counts is None or (len(self.counts) == self.n and sizes == {len(self.classes or ())} != {0})
        labeled = all(each is None or len(each) == self.n for each in (self.labels, self.positions))
        if not (shapes and labeled and all(0 <= i < self.n and 0 <= j < self.n for i, j in self.edges)):
            raise ValueError("the graph and the partition do not fit together")
        return self


class Round(BaseModel):
    """The weights of one communication round in weights.jsonl: i, j, thousandths, i, j, thousandths, …"""

    model_config = ConfigDict(extra="forbid")
    arcs: list[Natural] = []
    pairs: list[Natural] = []  # both arcs between i and j


class WeightsLine(Line):
    """A line of weights.jsonl."""

    params: list[Round] = []
    updates: list[Round] = []
    tree: list[tuple[Natural, Natural]] = []


class NodesLine(Line):
    """A line of nodes.jsonl."""

    xy: list[Annotated[float, Field(allow_inf_nan=False)]]
    accuracy: list[Annotated[int, Field(ge=0, le=1000)]] | None = None


class Head(BaseModel):
    """The part of config.yaml that a report needs, of any version."""

    name: str = ""
    description: str = ""
    metrics: list[str] = []
    seeds: list[int] = []
    window: Annotated[int, Field(ge=1)] = 1
    variants: dict[str, dict[str, Any]] = {}


def read_record(line: bytes, form: type[Line] = RecordLine) -> dict[str, Any] | None:
    """Return a sealed line as a dictionary, without its checksum; None if it is damaged."""
    try:
        intact = unsealed(line)
        return None if intact is None else form.model_validate_json(intact).model_dump()
    except ValidationError:
        return None


@dataclass
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    records: Steps
    scene: dict[str, Any] | None = None
    weights: Steps = field(default_factory=list)
    nodes: Steps = field(default_factory=list)
    steps: int | None = None  # the number of steps planned, if known
    divergence: Divergence | None = None

    @property
    def done(self) -> int:
        """The number of steps recorded."""
        return int(self.records[-1]["step"]) + 1 if self.records else 0

    @property
    def finished(self) -> bool:
        """Whether all planned steps are recorded, as far as the plan is known, or the run has diverged."""
        whole = bool(self.records) and (self.steps is None or self.done >= self.steps)
        return whole or self.divergence is not None


@dataclass
class RunFolder:
    """The contents of a folder; `problems` lists what is missing or damaged.

    With several topologies, variants are named `topology/variant`; `topology` is that of all its variants, if any.
    """

    path: Path
    name: str
    description: str = ""
    metrics: list[str] = field(default_factory=list)
    window: int = 1
    variants: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    config: str = ""
    problems: list[str] = field(default_factory=list)
    topology: str = ""
    python: bool = False  # whether it is that of mixwise.compare

    def by_topology(self) -> list[RunFolder]:
        """The folder once for each topology, with its runs and their problems; those of no run come first."""
        names = list(dict.fromkeys(map(topology_of, self.variants)))
        if len(names) < 2:
            return [self]
        parts = []
        for name in names:
            variants = [variant for variant in self.variants if topology_of(variant) == name]
            runs = [run for run in self.runs if topology_of(run.variant) == name]
            problems = [text for text in self.problems if text.startswith(tuple(f"{each}, seed " for each in variants))]
            parts.append(replace(self, variants=variants, runs=runs, problems=problems, topology=name))
        found = {text for part in parts for text in part.problems}
        parts[0].problems[:0] = [text for text in self.problems if text not in found]
        return parts

    def of(self, variant: str) -> list[Run]:
        """The runs of a variant."""
        return [run for run in self.runs if run.variant == variant]

    def averaged(self, variant: str) -> list[Run]:
        """The runs of a variant that tables and curves average: those that have not diverged."""
        return [run for run in self.of(variant) if run.divergence is None]

    def comment(self, start: str) -> str:
        """The first comment in config.yaml that begins like this; empty if there is none."""
        found = re.search(rf"^# *({start}.*)", self.config, re.MULTILINE)
        return found[1].strip() if found else ""

    @property
    def finished(self) -> bool:
        """Whether every planned run is complete."""
        return len(self.runs) == len(self.variants) * len(self.seeds) and all(run.finished for run in self.runs)


def topology_of(variant: str) -> str:
    """The topology of a variant; empty if its recipe has one only.

    >>> topology_of("ring/dsgd"), topology_of("dsgd")
    ('ring', '')
    """
    return variant.rpartition("/")[0]


def read_folders(paths: Sequence[Path], cache: Cache | None = None) -> list[RunFolder]:
    """Read run folders; a folder of run folders, such as that of a sweep, stands for the ones inside it."""
    return [read_folder(place, cache) for path in paths for place in run_folders(path)]


def run_folders(path: Path) -> list[Path]:
    """Return the folder itself if it is that of a run, otherwise the run folders inside it, if there are any."""
    inside = sorted(config.parent for config in path.glob("*/config.yaml"))
    return inside if inside and not (path / "config.yaml").exists() else [path]


def read_folder(path: Path, cache: Cache | None = None) -> RunFolder:
    """Read one run folder."""
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; name a folder that mixwise run has made")
    folder, steps = _read_config(path)
    found = seed_folders(path)
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


def seed_folders(path: Path) -> dict[tuple[str, int], Path]:
    """Return the folders of all runs, by variant and seed, however large the tree is that they are in."""
    return {
        (place.parent.relative_to(path).as_posix(), int(named[1])): place
        for level in range(1, _DEEPEST + 1)
        for place in path.glob("*/" * level + "seed-*")
        if (named := _SEED.fullmatch(place.name)) and place.is_dir()
    }


def _read_config(path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """A folder as config.yaml describes it, without its runs, and the number of steps of each variant, where given."""
    head, problem, source = Head(), "", ""
    try:
        source = text(path / "config.yaml", follow=False)
        head = Head.model_validate(parsed_yaml(source, "config.yaml"))
        if len(head.variants) * len(head.seeds) > _MAX_PLANNED:
            head, problem = Head(), f"config.yaml plans more than {_MAX_PLANNED:,} runs"
    except FileNotFoundError:
        problem = "config.yaml is missing, so the planned runs are not known"
    except OSError as error:
        problem = f"config.yaml cannot be read: {error.strerror}"
    except ConfigError as error:
        problem = f"config.yaml is damaged: {error}"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"config.yaml is damaged: {'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    folder = RunFolder(
        path, head.name or path.resolve().name or "run", head.description, head.metrics, head.window,
        list(head.variants), list(dict.fromkeys(head.seeds)), config=source, problems=[problem] if problem else [],
        python=any("python" in part for part in head.variants.values()),
    )  # fmt: skip
    return folder, {name: part["steps"] for name, part in head.variants.items() if isinstance(part.get("steps"), int)}


# --- one run ---
def _read_run(folder: RunFolder, place: Path, variant: str, seed: int, steps: int | None, cache: Cache) -> None:
    records, damaged = _lines(place / "metrics.jsonl", RecordLine, cache)
    weights, damaged_weights = _lines(place / "weights.jsonl", WeightsLine, cache)
    scene = read_scene(place / "scene.json")
    steps = steps if scene is None or scene["steps"] is None else scene["steps"]
    nodes, damaged_nodes = _lines(place / "nodes.jsonl", NodesLine, cache)
    run = Run(variant, seed, records, scene, weights, nodes, steps, read_divergence(place))
    folder.runs.append(run)
    problems = {
        f"{damaged} damaged line{'s' * (damaged > 1)} in metrics.jsonl, skipped": damaged > 0,
        "damaged lines in weights.jsonl, skipped": damaged_weights > 0,
        "damaged lines in nodes.jsonl, skipped": damaged_nodes > 0,
        "no records": not records and run.divergence is None,
        f"{run.done} of {run.steps} steps": bool(records) and not run.finished,
        "no readable scene.json, so its graph cannot be drawn": scene is None,
    }
    folder.problems += [f"{variant}, seed {seed}: {problem}" for problem, present in problems.items() if present]


def read_scene(path: Path) -> dict[str, Any] | None:
    """The scene, if it can be drawn."""
    try:
        return Scene.model_validate_json(contents(path, _MAX_FILE, follow=False)).model_dump()
    except (OSError, ValidationError):
        return None


def _lines(path: Path, form: type[Line], cache: Cache) -> Lines:
    """The lines of a file, read again only if it has changed."""
    try:
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if path not in cache or cache[path][0] != stamp:
            cache[path] = stamp, _parsed(contents(path, _MAX_FILE, follow=False), form)
    except OSError:
        return [], 0
    return cache[path][1]


def _parsed(data: bytes, form: type[Line]) -> Lines:
    """The records in a file; a last line without its end is still being written and not damaged."""
    kept: Steps = []
    damaged = 0
    for line in data.splitlines(keepends=True):
        record = read_record(line, form)
        if record is not None and (not kept or record["step"] > kept[-1]["step"]):
            kept.append(record)
        else:
            damaged += line.endswith(b"\n")
    return kept, damaged
