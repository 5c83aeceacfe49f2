"""Rows of different lengths on disk: made once, read through a memory map.

Legend: values (T, …), all rows one after the other; offsets (N + 1,), row i is values[offsets[i] : offsets[i + 1]].

A folder per content, named by a key of what it was made from. It appears whole or not at all, so that several processes
may make it at the same time; one that is damaged is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.data.files import data_folder
from mixwise.errors import DataError

Array: TypeAlias = npt.NDArray[Any]

_VALUES, _OFFSETS, _SEAL = "values.npy", "offsets.npy", "seal.json"
_CHECKED = 1 << 26  # bytes: what is larger is checked by its size alone, or opening it would take as long as reading it


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of different lengths, and the key of what they were made from."""

    values: Array
    offsets: npt.NDArray[np.int64]
    key: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Of the rows, (N,)."""
        return np.diff(self.offsets)


def cache_folder() -> Path:
    """Where tokens and features are kept: `$MIXWISE_CACHE`, by default the folder `prepared` beside the data sets."""
    return Path(os.environ.get("MIXWISE_CACHE") or data_folder(None, "prepared")).expanduser()


def content_key(kind: str, *parts: str | bytes) -> str:
    """A name for what is made from these parts.

    >>> content_key("tokens", "a", "b") == content_key("tokens", "ab")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()[:32]}"


def kept(key: str, make: Callable[[Path], None]) -> Ragged:
    """The rows of this key, from the cache; if they are not there or damaged, `make` writes them (`write_rows`)."""
    place = cache_folder() / key
    found = _opened(place, key)
    if found is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent, ignore_cleanup_errors=True) as scratch:
            new = Path(scratch) / key
            new.mkdir()
            make(new)
            _seal(new)
            _put(new, place, Path(scratch) / "old")
            found = _opened(place, key)
    except OSError as error:
        raise DataError(
            f"{place}: cannot be written ({error.strerror or error}); make room, or choose a folder with MIXWISE_CACHE"
        ) from None
    if found is None:
        raise DataError(f"{place}: what was just written cannot be read; choose another folder with MIXWISE_CACHE")
    return found


def write_rows(folder: Path, lengths: npt.ArrayLike, row: tuple[int, ...], dtype: Any, parts: Iterable[Array]) -> None:
    """Write the rows, given their lengths, the shape of one entry, and their values in order, in parts of any size."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    total = int(offsets[-1])
    np.save(folder / _OFFSETS, offsets)
    needed = total * int(np.prod(row)) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder.parent.parent} has room for {free / 1e9:.1f} GB, and {needed / 1e9:.1f} GB are needed; "
            f"choose another folder with MIXWISE_CACHE, or leave the cache out"
        )
    written = 0
    with (folder / _VALUES).open("wb") as out:  # plain writes: a memory map on a full disk kills the process
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (total, *row)}
        np.lib.format.write_array_header_1_0(out, header)
        for part in parts:
            out.write(np.ascontiguousarray(part, dtype).tobytes())
            written += len(part)
    assert written == total, f"{written} entries for {total}"


def _seal(folder: Path) -> None:
    """Note what the files must look like."""
    (folder / _SEAL).write_text(json.dumps(_looks(folder)), "utf-8")


def _looks(folder: Path) -> dict[str, list[int]]:
    looks = {}
    for name in (_VALUES, _OFFSETS):
        size = (folder / name).stat().st_size
        looks[name] = [size, zlib.crc32((folder / name).read_bytes()) if size <= _CHECKED else 0]
    return looks


def _opened(place: Path, key: str) -> Ragged | None:
    try:
        if json.loads((place / _SEAL).read_text("utf-8")) != _looks(place):
            return None
        return Ragged(np.load(place / _VALUES, mmap_mode="r"), np.load(place / _OFFSETS), key)
    except (OSError, ValueError):
        return None


def _put(new: Path, place: Path, old: Path) -> None:
    """Let a folder appear at its place; whatever another process has put there meanwhile holds the same."""
    for _ in range(3):
        try:
            new.rename(place)
            return
        except OSError:
            if _opened(place, place.name) is not None:
                return
            place.rename(old)  # damaged: away with it
            shutil.rmtree(old, ignore_errors=True)
    raise DataError(f"{place}: cannot be replaced; delete it")
