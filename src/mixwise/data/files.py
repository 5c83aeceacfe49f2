"""Files of datasets: where they are, and how a missing one is downloaded and verified."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mixwise.data.progress import ProgressLog
from mixwise.errors import DataError

Folder: TypeAlias = str | os.PathLike[str]

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
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
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            part = Path(scratch) / remote.name
            with part.open("wb") as out:
                out.writelines(_blocks(remote, remedy))
            if (md5 := _md5(part)) != remote.md5:
                raise DataError(
                    f"{remote.url}: the download has md5 {md5}, expected {remote.md5}; try again, or {remedy}"
                )
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


def contents(path: Path) -> bytes:
    """Return all bytes of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; restore it, or delete {path.parent} to start over") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def check_md5(path: Path, md5: str) -> None:
    """Raise an error if a file is not the published one."""
    try:
        found = _md5(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if found != md5:
        raise DataError(
            f"{path}: {path.stat().st_size} bytes with md5 {found}, expected {md5}; the file is truncated or not the "
            f"original: delete it to download it again, or replace it"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}); check its permissions")
