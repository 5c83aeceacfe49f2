"""One run at a time in a folder: a lock file that says which process uses it.

The file is created with O_EXCL, which is atomic on network file systems as well: of two runs on any machines, one gets
it. Its process also holds a `flock` on it, which the kernel takes back however the process ends. So on the same machine
it is certain whether the run of a lock is alive, and the lock of a run that was killed is taken over; of several that
try, by one. On another machine that would depend on the file system: there the user decides.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError

LOCK = "run.lock"


class FolderLock:
    """The lock of a run folder.

    Attributes:
        token: by which later processes of the same run, after a restart or a loss, know that the lock is theirs.
        left_by: the process that left the lock behind, in words; empty if there was none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK
        self.token, self.left_by = uuid.uuid4().hex, ""
        self._file: int | None = None
        self._made = False  # whether the folder was made for the lock

    def take(self, token: str | None = None) -> None:
        """Make the folder if it is not there, and take the lock, or say who has it; `token` is that of an earlier
        process of the same run."""
        self.token = token or self.token
        while self._file is None:
            try:
                if not self.folder.is_dir():
                    self.folder.mkdir(parents=True)
                    self._made = True
                self._create()
            except FileExistsError:
                self._take_over()
            except OSError as error:
                raise ConfigError(
                    f"the folder {self.folder} cannot be made: {error.strerror}; choose another with --out"
                ) from None

    def release(self) -> None:
        """Remove the lock, if it is still ours, and a folder that was made for nothing else."""
        if self._file is None:
            return
        if (_note(self.path) or {}).get("token") == self.token:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._file)
        self._file = None
        if self._made:
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def _create(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        _flock(file)
        self._write(file)

    def _write(self, file: int) -> None:
        """Say whose lock it is; a few bytes, which are written at once."""
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        note = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "token": self.token}
        text = json.dumps(note).encode() + b"\n"
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
        self._file = file

    def _take_over(self) -> None:
        """Take the lock of a process that is gone; return without it if it has been removed meanwhile."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            note = _note(self.path)
            if note is None:
                raise ConfigError(
                    f"{self.path} does not say which run uses the folder: one is just starting, or was killed as it "
                    f"started; if there is none, remove {self.path}"
                )
            who = f"process {note['pid']} on {note['host']} since {note['since']}"
            ours, here = note["token"] == self.token, note["host"] == socket.gethostname()
            free = _flock(file) if ours or here else None
            if not ours and free is None:
                raise ConfigError(f"{self.folder} is in use by {who}; if that run is gone, remove {self.path}")
            if not ours and not free:
                raise ConfigError(
                    f"{self.folder} is in use by {who}; wait until it has ended, or choose another folder with --out"
                )
            if not _is_at(file, self.path):
                return
            self.left_by = "" if ours else who
            self._write(file)
        finally:
            if self._file is None:
                os.close(file)


def _note(path: Path) -> dict[str, Any] | None:
    """Whose lock it is; None if it does not say."""
    try:
        note = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and note.keys() >= {"host", "pid", "since", "token"} else None


def _flock(file: int) -> bool | None:
    """Whether this process has the kernel's lock on an open file now; None where there are no such locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
