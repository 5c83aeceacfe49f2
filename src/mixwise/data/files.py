"""Files of data sets: where they lie, and how a missing one is downloaded and checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mixwise.errors import DataError

Folder: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all (if known)

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, its address and the md5 sum published for it."""

    name: str
    url: str
    md5: str


def data_folder(data_dir: Folder | None, name: str) -> Path:
    """The folder of the data set `name` under `data_dir`, by default under `$MIXWISE_DATA`, else `~/.cache/mixwise`."""
    root = data_dir or os.environ.get("MIXWISE_DATA") or "~/.cache/mixwise"
    return Path(root).expanduser() / name


def fetch(remote: RemoteFile, folder: Path, otherwise: str, progress: Progress | None = None) -> Path:
    """Download a file into `folder`; it appears there whole and with the right md5 sum, or not at all.

    Args:
        remote: what to download.
        folder: made if missing.
        otherwise: what the user can do without a connection; the end of the message when there is none.
        progress: called after every block.
    """
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            part = Path(scratch) / remote.name
            digest = hashlib.md5(usedforsecurity=False)
            with part.open("wb") as out:
                for block in _blocks(remote, otherwise, progress):
                    digest.update(block)
                    out.write(block)
            if digest.hexdigest() != remote.md5:
                raise DataError(
                    f"{remote.url}: what arrived has md5 {digest.hexdigest()}, published is {remote.md5}; "
                    f"nothing was kept: try again, or {otherwise}"
                )
            part.replace(target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error}); choose another data_dir or set MIXWISE_DATA") from None
    return target


def _blocks(remote: RemoteFile, otherwise: str, progress: Progress | None) -> Iterator[bytes]:
    received, total = 0, None
    try:
        with urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            while block := response.read(_BLOCK):
                received += len(block)
                yield block
                if progress is not None:
                    progress(remote.name, received, total)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{remote.url} cannot be downloaded ({reason}); {otherwise}") from None
    if total is not None and received < total:
        raise DataError(f"{remote.url}: only {received} of {total} bytes arrived; try again, or {otherwise}")


def contents(path: Path) -> bytes:
    """All bytes of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; restore it, or delete {path.parent} to have the data anew") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def check_md5(path: Path, md5: str) -> None:
    """Refuse a file that is not the published one."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if digest.hexdigest() != md5:
        raise DataError(
            f"{path}: {path.stat().st_size} bytes with md5 {digest.hexdigest()}, published is {md5}; the file is "
            f"truncated or not the original: delete it to have it downloaded again, or replace it"
        )
