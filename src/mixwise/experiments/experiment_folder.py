"""The folder of an experiment: its files, its lock, and its state when a run begins or resumes.

DIR/config.yaml                           the experiment as it was run; itself a recipe
DIR/fingerprint.json                      what a resumed run must have in common with it
DIR/<variant>/seed-<s>/metrics.jsonl      one line per record, the same bits for the same seed and machine
DIR/<variant>/seed-<s>/timings.jsonl      wall-clock seconds of the same steps
DIR/<variant>/seed-<s>/scene.json         the graph and the partition, for pictures
DIR/<variant>/seed-<s>/weights.jsonl      the weights over time, thinned, for pictures
DIR/<variant>/seed-<s>/nodes.jsonl        two numbers per model over time and the nodes' accuracies, for pictures
DIR/<variant>/seed-<s>/diverged.json      of a run that diverged: the step, the node, the learning rate
DIR/<variant>/seed-<s>/tensorboard/       with tensorboard=true: numbers, graph and weights for TensorBoard
DIR/<variant>/seed-<s>/checkpoint/        the state to resume from; at the end, the result
DIR/summary.csv, summary.md, figures/     the last window of every run, averaged over seeds; curves
DIR/report.html                           everything on one page
DIR/run.lock                              while it runs: the process that uses the folder
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mixwise.errors import ConfigError, MixwiseError, TrainingError
from mixwise.experiments.fingerprint import leave_fingerprint
from mixwise.experiments.pairing import Start
from mixwise.experiments.recipe import Experiment, load_recipe
from mixwise.network.world import World
from mixwise.report.divergence import DIVERGED
from mixwise.storage import check_no_links, make_folder, sync, write_text
from mixwise.training.checkpoint import keep_only, newest_step
from mixwise.training.record_files import METRICS, TIMINGS, cut_run, records_before

CHECKPOINT, LOCK = "checkpoint", "run.lock"
_log = logging.getLogger(__name__)


# --- the folder of all runs ---
def open_folder(
    lock: FolderLock,
    experiment: Experiment,
    resume: bool,
    world: World,
    starts: Mapping[int, Start] = MappingProxyType({}),
) -> None:
    """Lock and open the folder, which process 0 does, and check that all processes see it.

    `starts` is what each seed starts with, where that is known; a resumed run starts with the same.
    """

    def open_(begun_before: bool) -> None:
        _open(lock.folder, experiment, resume or begun_before)
        leave_fingerprint(lock.folder, experiment, starts)

    lock.begin(world, open_)
    if not (lock.folder / "config.yaml").exists():
        raise ConfigError(
            f"process {world.rank} does not see {lock.folder}, which process 0 has made; "
            f"choose a folder with --out that all machines share"
        )


def _open(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Begin in the folder; to resume, check that it holds this experiment."""
    config = folder / "config.yaml"
    runs = [folder / variant / f"seed-{seed}" for variant in experiment.runs for seed in experiment.recipe.seeds]
    check_no_links(folder, [folder / "figures", *(run / part for run in runs for part in (CHECKPOINT, "tensorboard"))])
    if all(path.name in (LOCK, "config.yaml.part") for path in folder.iterdir()):
        packages = ", ".join(f"{name} {version(name)}" for name in ("mixwise", "torch", "numpy", "scipy", "piqp"))
        command = f"# command: {' '.join(experiment.command.split())}\n" if experiment.command else ""
        origin = f"# {packages}, Python {platform.python_version()}\n{command}"
        write_text(config, origin + experiment.to_yaml())
    elif not resume:
        raise ConfigError(
            f"the folder {folder} is not empty, and no run is ever overwritten; "
            f"choose another with --out, or continue there with --resume (in Python: out=…, resume=True)"
        )
    # Read again, so that a folder of an earlier version, with other defaults written out, can be resumed.
    elif not config.exists():
        raise ConfigError(f"{folder} holds no config.yaml, so there is nothing to resume; choose another folder")
    elif not experiment.written_in(config):
        call = "the call of mixwise.compare that began it and resume=True"
        again = call if load_recipe(str(config)).is_described else f"mixwise run {config} --out {folder} --resume"
        raise ConfigError(f"{folder} holds another experiment; continue it with {again}, or choose another folder")


@contextmanager
def emptied_without_records(folder: Path) -> Iterator[None]:
    """Remove all that a run has written if it fails before its first record; its lock removes the folder."""
    try:
        yield
    except MixwiseError:
        if not any(path.stat().st_size for path in folder.glob(f"**/{METRICS}")):
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != LOCK:
                    path.unlink()
        raise


@contextmanager
def writing(folder: Path) -> Iterator[FolderLock]:
    """Yield the lock of a folder and release it; a full disk, or a folder that cannot be written, is one error."""
    lock = FolderLock(folder)
    try:
        yield lock
    except OSError as error:
        what = error.filename or folder
        raise TrainingError(
            f"{what} cannot be written or read ({error.strerror or error}); make room or correct the permissions, "
            f"then continue with --resume"
        ) from None
    finally:
        lock.release()


# --- the folder of one run ---
def clear_run(place: Path, recorded: Callable[[int], list[int]]) -> int:
    """Cut the folder of a run back to its newest intact checkpoint that has all records before it; return its step.

    Args:
        place: the folder.
        recorded: given a number of steps, those among the first ones that have a record.
    """
    make_folder(place)
    folder = place / CHECKPOINT

    def incomplete(step: int) -> str:
        for path in (place / METRICS, place / TIMINGS):
            found = records_before(path, step)
            if set(recorded(step)) - {record["step"] for record in found.records}:
                what = "lacks records" if found.damaged is None else f"is damaged in line {found.damaged},"
                return f"{path} {what} before the checkpoint of step {step}"
        return ""

    step = newest_step(folder, incomplete) or 0
    keep_only(folder, step)
    cut_run(place, step)
    for stale in [*place.glob("*.part"), place / DIVERGED]:
        stale.unlink(missing_ok=True)
    return step


# --- the lock ---
class FolderLock:
    """One run at a time in a folder: a lock file that names the process that uses it.

    The file is created with O_EXCL, which is atomic on network file systems as well: of two runs on any machines, one
    gets it. Its process also holds a `flock` on it, which the kernel releases however the process ends. So on the same
    machine it is certain whether the run of a lock is alive, and the lock of a run that was killed is taken over, by
    one process only. On another machine that would depend on the file system: there the user decides.

    Attributes:
        token: identifies the run, so that its later processes, after a restart or a loss, recognize their lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK
        self.token = uuid.uuid4().hex
        self._note_name = f"begun {folder.absolute()}"
        self._file: int | None = None
        self._made = False  # whether the folder was made for the lock

    def begin(self, world: World, open_: Callable[[bool], None] = lambda begun_before: None) -> None:
        """Take the lock and open the folder, both in process 0, and leave the token for processes after a restart.

        `open_` is told whether this run has begun in the folder before.
        """

        def take() -> None:
            open_(self.take(world))
            world.note(self._note_name, self.token)

        world.decide(take)

    def take(self, world: World) -> bool:
        """Make the folder and take the lock, or raise an error that names the process that has it.

        Returns whether this run has begun in the folder before; after a restart or a loss, it keeps its lock.
        """
        before = world.recall(self._note_name)
        self.token = before or self.token
        while self._file is None:
            try:
                if not self.folder.is_dir():
                    make_folder(self.folder)
                    self._made = True
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                _flock(file)
                self._write(file)
            except FileExistsError:
                self._take_over()
            except OSError as error:
                reason = f"{error.strerror}; choose another with --out"
                raise ConfigError(f"the folder {self.folder} cannot be made: {reason}") from None
        return before is not None

    def release(self) -> None:
        """Remove the lock, if it is still ours, and a folder that was made for nothing else."""
        if self._file is None:
            return
        with suppress(OSError):
            if (_note(self.path) or {}).get("token") == self.token:
                self.path.unlink()
        os.close(self._file)
        self._file = None
        if self._made:
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def _write(self, file: int) -> None:
        """Write whose lock it is: a few bytes, in one call."""
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        note = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "token": self.token}
        text = json.dumps(note).encode() + b"\n"
        self._file = file  # released, whatever happens
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
        sync(file)

    def _take_over(self) -> None:
        """Take the lock of a process that is gone; return without it if it was removed in the meantime."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            note = _note(self.path)
            if note is None:
                raise ConfigError(
                    f"{self.path} does not name the run that uses the folder: one is just starting, or was killed as "
                    f"it started; if there is none, remove {self.path}"
                )
            user = f"process {note['pid']} on {note['host']} since {note['since']}"
            ours, here = note["token"] == self.token, note["host"] == socket.gethostname()
            free = _flock(file) if ours or here else None
            if not ours and not free:
                remedy = "wait until it has ended, or choose another folder with --out"
                remedy = f"if that run is gone, remove {self.path}" if free is None else remedy
                raise ConfigError(f"{self.folder} is in use by {user}; {remedy}")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(self.path)):
                    self._write(file)
                    if not ours:
                        _log.warning("%s was left behind by %s, which is gone; this run takes it over", self.path, user)
        finally:
            if self._file is None:
                os.close(file)


def _note(path: Path) -> dict[str, Any] | None:
    """The content of a lock file; None if it is not complete."""
    try:
        note = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and note.keys() >= {"host", "pid", "since", "token"} else None


def _flock(file: int) -> bool | None:
    """Whether this process has the kernel's lock on an open file now; None where such locks do not exist."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True
