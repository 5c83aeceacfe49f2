"""Rows of different lengths on disk: computed once, read through a memory map.

Legend: values (T, …), all rows one after the other; offsets (N + 1,), row i is values[offsets[i] : offsets[i + 1]].

Each content has a folder, named by a key of what it was computed from. The folder appears complete or not at all, so
that several processes may compute it at the same time; a damaged one is computed again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.data.files import data_folder
from mixwise.errors import DataError

Array: TypeAlias = npt.NDArray[Any]

_VALUES, _OFFSETS, _SEAL = "values.npy", "offsets.npy", "seal.json"
_CHECKED = 1 << 26  # bytes; only the size of larger files is verified, or opening one would take as long as reading it


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of different lengths, and the key of what they were computed from."""

    values: Array
    offsets: npt.NDArray[np.int64]
    key: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The lengths of the rows, (N,)."""
        return np.diff(self.offsets)


def cache_folder() -> Path:
    """Return the cache of tokens and features: `$MIXWISE_CACHE`, else the folder `prepared` beside the datasets."""
    return Path(os.environ.get("MIXWISE_CACHE") or data_folder(None, "prepared")).expanduser()


def content_key(kind: str, *parts: str | bytes) -> str:
    """Return a name for what is computed from these parts.

    >>> content_key("tokens", "a", "b") == content_key("tokens", "ab")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()[:32]}"


def cached_rows(key: str, write: Callable[[Path], None]) -> Ragged:
    """Open the rows of this key; if they are missing or damaged, `write` writes them first (`write_rows`)."""
    place = cache_folder() / key
    if (found := _opened(place)) is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent, ignore_cleanup_errors=True) as scratch:
            new = Path(scratch) / key
            new.mkdir()
            write(new)
            (new / _SEAL).write_text(json.dumps(_fingerprint(new)), "utf-8")
            with suppress(OSError):  # another process may have been faster
                new.rename(place)
            if (found := _opened(place)) is None:
                with suppress(OSError):
                    place.rename(Path(scratch) / "damaged")
                    new.rename(place)
                found = _opened(place)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{place}: cannot be written ({reason}); set MIXWISE_CACHE to another folder") from None
    if found is None:
        raise DataError(f"{place}: cannot be replaced; delete it, or set MIXWISE_CACHE to another folder")
    return found


def write_rows(folder: Path, lengths: npt.ArrayLike, row: tuple[int, ...], dtype: Any, parts: Iterable[Array]) -> None:
    """Write rows, given their lengths, the shape of one entry, and their values in order, in parts of any size."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    np.save(folder / _OFFSETS, offsets)
    total = int(offsets[-1])
    needed, free = total * math.prod(row) * np.dtype(dtype).itemsize, shutil.disk_usage(folder).free
    if needed > free:
        found = f"{folder.parent.parent} has {free / 1e9:.1f} GB of free space, {needed / 1e9:.1f} GB are needed"
        raise DataError(f"{found}; set MIXWISE_CACHE to another folder, or disable the cache")
    written = 0
    with (folder / _VALUES).open("wb") as out:  # plain writes: a memory map on a full disk kills the process
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (total, *row)}
        np.lib.format.write_array_header_1_0(out, header)
        for part in parts:
            out.write(np.ascontiguousarray(part, dtype).tobytes())
            written += len(part)
    assert written == total, f"{written} entries for {total}"


def _fingerprint(folder: Path) -> dict[str, list[int]]:
    """Return the size and the checksum of each file."""
    found = {}
    for path in (folder / _VALUES, folder / _OFFSETS):
        size = path.stat().st_size
        found[path.name] = [size, zlib.crc32(path.read_bytes()) if size <= _CHECKED else 0]
    return found


def _opened(place: Path) -> Ragged | None:
    """Open the rows in a folder; None if they are missing or damaged."""
    try:
        if json.loads((place / _SEAL).read_text("utf-8")) != _fingerprint(place):
            return None
        return Ragged(np.load(place / _VALUES, mmap_mode="r"), np.load(place / _OFFSETS), place.name)
    except (OSError, ValueError):
        return None
