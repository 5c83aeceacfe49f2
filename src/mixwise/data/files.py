"""Files of datasets: where they are, how a missing one is downloaded and verified, and the progress of long work."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mixwise.errors import DataError

Folder: TypeAlias = str | os.PathLike[str]

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_INTERVAL = 5.0  # seconds between two lines of progress
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, its address and its published md5 sum."""

    name: str
    url: str
    md5: str


def data_folder(data_dir: Folder | None, name: str) -> Path:
    """Return the folder of the dataset `name` in `data_dir`; by default in `$MIXWISE_DATA`, else `~/.cache/mixwise`."""
    root = data_dir or os.environ.get("MIXWISE_DATA") or "~/.cache/mixwise"
    return Path(root).expanduser() / name


def fetch(remote: RemoteFile, folder: Path, remedy: str) -> Path:
    """Download a file into `folder`, which is created if missing; a file with the wrong md5 sum is not kept.

    Args:
        remote: the file to download.
        folder: the destination.
        remedy: the end of error messages, what to do without a connection.
    """
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = b"".join(_blocks(remote, remedy))
        if (md5 := _md5(content)) != remote.md5:
            raise DataError(f"{remote.url}: downloaded md5 {md5}, expected {remote.md5}; try again, or {remedy}")
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            part = Path(scratch) / remote.name
            part.write_bytes(content)
            part.replace(target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error}); choose another data_dir or set MIXWISE_DATA") from None
    return target


def _blocks(remote: RemoteFile, remedy: str) -> Iterator[bytes]:
    received = total = 0
    try:
        with urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            progress = ProgressLog(_log, f"downloading {remote.name}", total)
            while block := response.read(_BLOCK):
                received += len(block)
                yield block
                if total:
                    progress(received)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{remote.url} cannot be downloaded ({reason}); {remedy}") from None
    if received < total:
        raise DataError(f"{remote.url}: only {received} of {total} bytes arrived; try again, or {remedy}")


def contents(path: Path, md5: str | None = None) -> bytes:
    """Return all bytes of a file; with an md5 sum, raise an error if it is not the published file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; restore it, or delete {path.parent} to start over") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if md5 is not None and (found := _md5(content)) != md5:
        remedy = "the file is truncated or not the original: delete it to download it again, or replace it"
        raise DataError(f"{path}: {len(content)} bytes with md5 {found}, expected {md5}; {remedy}")
    return content


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class ProgressLog:
    """Logs the progress of an operation every few seconds; a short operation is not mentioned.

    Args:
        log: the logger.
        title: of the operation.
        total: the amount of work, in any unit.
    """

    def __init__(self, log: logging.Logger, title: str, total: int) -> None:
        self.log, self.title, self.total = log, title, total
        self._last = self._start = time.monotonic()

    def __call__(self, done: int) -> None:
        """Report the amount of work that is done."""
        now = time.monotonic()
        if now - self._last >= _INTERVAL or (done == self.total and self._last > self._start):
            left = (now - self._start) / max(done, 1) * (self.total - done)
            self.log.info("%s: %.0f %%, %.0f s left", self.title, 100 * done / self.total, left)
            self._last = now
