"""The folder of an experiment: what lies where, opened for a new run, and cut back to where an old one goes on.

DIR/config.yaml                           the experiment as it was run; itself a recipe
DIR/<variant>/seed-<s>/metrics.jsonl      one line per record, the same bits for the same seed and machine
DIR/<variant>/seed-<s>/timings.jsonl      wall-clock seconds of the same steps
DIR/<variant>/seed-<s>/scene.json         who talks to whom, and who holds what; for pictures
DIR/<variant>/seed-<s>/weights.jsonl      the weights over time, thinned; for pictures
DIR/<variant>/seed-<s>/tensorboard/       if asked for: numbers, graph and weights for TensorBoard
DIR/<variant>/seed-<s>/checkpoint/        where to go on; at the end, the result
DIR/summary.csv, summary.md, figures/     the last window of every run, averaged over seeds; curves
DIR/report.html                           all of it, to look at
DIR/run.lock                              while it runs: which process uses the folder
"""

from __future__ import annotations

import json
import logging
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError
from mixwise.experiments.folder_lock import LOCK, FolderLock
from mixwise.experiments.recipe import Experiment, load_recipe, plan_experiment
from mixwise.network.world import World
from mixwise.training.checkpoint import keep_only, names_of_nodes, newest_step

METRICS, TIMINGS, CHECKPOINT = "metrics.jsonl", "timings.jsonl", "checkpoint"
SCENE, WEIGHTS = "scene.json", "weights.jsonl"
_log = logging.getLogger(__name__)


# --- the folder of all runs ---
def open_folder(folder: Path, experiment: Experiment, resume: bool, world: World, lock: FolderLock) -> None:
    """Open the folder, which process 0 does and takes its lock, and see that it is there for all."""

    def open_it() -> None:
        begun_before = hold(lock, world)
        try:
            _open(folder, experiment, resume or begun_before)
        except BaseException:
            lock.release()
            raise
        note_begin(lock, world)

    world.decide(open_it)
    if not (folder / "config.yaml").exists():
        raise ConfigError(
            f"process {world.rank} does not see {folder}, which process 0 has made; "
            f"choose a folder with --out that all machines share"
        )


def hold(lock: FolderLock, world: World) -> bool:
    """Take the lock, in process 0; whether this run has begun in the folder before, which makes an old lock ours."""
    before = world.recall(_begun(lock.folder))
    lock.take(before)
    return before is not None


def note_begin(lock: FolderLock, world: World) -> None:
    """Note, for those who come after a restart, that the lock is theirs; and for the user, if it was another's."""
    if lock.left_by:
        _log.warning("%s was left behind by %s, which is gone; this run takes it over", lock.path, lock.left_by)
    world.note(_begun(lock.folder), lock.token)


def _begun(folder: Path) -> str:
    """The name of a note to those who come after a restart: the token of the run's lock."""
    return f"begun {folder.absolute()}"


def _open(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Begin in the folder, or, to resume, see that it belongs to this experiment."""
    config = folder / "config.yaml"
    occupied = any(path.name != LOCK for path in folder.iterdir())
    if occupied and not resume:
        raise ConfigError(
            f"the folder {folder} is not empty, and no run is ever overwritten; "
            f"choose another with --out, or go on there with --resume"
        )
    if occupied:
        # Read again, so that a folder of an earlier version, with other defaults written out, can be resumed.
        if not config.exists() or not plan_experiment(load_recipe(str(config))).same_as(experiment):
            raise ConfigError(
                f"{folder} holds another experiment; go on with it: mixwise run {config} --out {folder} --resume"
            )
        return
    config.write_text(_provenance(experiment.command) + experiment.to_yaml(), "utf-8")


def _provenance(command: str) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("mixwise", "torch", "numpy", "scipy", "piqp"))
    typed = f"# command: {' '.join(command.split())}\n" if command else ""
    return f"# {packages}, Python {platform.python_version()}\n{typed}"


# --- the folder of one run ---
def clear_run(place: Path) -> tuple[int, list[int] | None]:
    """Leave in the folder of a run only what belongs to its newest complete checkpoint; the steps done until then, and
    the nodes that have done them."""
    place.mkdir(parents=True, exist_ok=True)
    step = newest_step(place / CHECKPOINT) or 0
    keep_only(place / CHECKPOINT, step)
    cut_run(place, step)
    return step, names_of_nodes(place / CHECKPOINT, step) if step else None


def cut_run(place: Path, step: int) -> None:
    """Leave only the records of the first steps."""
    for path in (place / METRICS, place / TIMINGS, place / WEIGHTS):
        _, size = records_before(path, step)
        if path.exists() and size < path.stat().st_size:
            os.truncate(path, size)  # cut, not written anew: a run that is killed here loses nothing that it needs


def records_before(path: Path, steps: int) -> tuple[list[dict[str, Any]], int]:
    """The records of the first `steps` steps, and their bytes; a line that is cut off, or being written, is none."""
    kept, size = [], 0
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                record = json.loads(line)
            except ValueError:
                break
            if record["step"] >= steps:
                break
            kept.append(record)
            size += len(line)
    return kept, size
