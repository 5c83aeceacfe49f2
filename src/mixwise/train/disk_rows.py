"""Rows in files instead of memory, for runs that do not fit.

Inside, whatever is made as large as the rows lies in a file that is mapped into memory: X, G, what the optimizer and
the algorithm remember, copies. The system keeps in memory what it has room for, and writes the rest to disk. A file has
no name from the moment it is there, so that nothing is left of it however the process ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from mixwise.errors import TrainingError

if TYPE_CHECKING:
    import psutil

_TICK = 0.02  # seconds between two looks at how much of the files is in memory
RESIDENT = 256 << 20  # bytes of the files that this process may hold, at most twice as many for a moment

Function = Callable[..., Any]

# What makes a tensor like another one: how it begins.
_LIKE: dict[Function, float | None] = {torch.zeros_like: 0.0, torch.empty_like: None, torch.ones_like: 1.0}
_NEW: dict[Function, float | None] = {torch.Tensor.new_zeros: 0.0, torch.Tensor.new_empty: None}
_COPIES = (torch.clone, torch.Tensor.clone)
# What computes entry by entry: how to say where the result goes.
_INTO: dict[Function, Function] = {
    torch.sub: torch.sub,
    torch.Tensor.sub: torch.sub,
    torch.Tensor.__sub__: torch.sub,
    torch.add: torch.add,
    torch.Tensor.add: torch.add,
    torch.Tensor.__add__: torch.add,
    torch.mul: torch.mul,
    torch.Tensor.mul: torch.mul,
    torch.Tensor.__mul__: torch.mul,
    torch.addcmul: torch.addcmul,
}


class DiskRows(TorchFunctionMode):
    """A place on disk for everything that has at least `least` bytes.

    Args:
        folder: where; as it is there, or the nearest folder above it that is. Not one in memory (tmpfs).
        least: bytes from which on a tensor is large; a run sets it to an eighth of its rows.

    Attributes:
        live, peak: bytes of the files that are there, and the most so far.
    """

    def __init__(self, folder: str | Path, least: int = 1 << 62) -> None:
        super().__init__()
        self.folder, self.least = _existing(Path(folder)), least
        self.live: int = 0
        self.peak: int = 0
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._watch: threading.Thread | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it; if something large comes of it, in a file."""
        kwargs = kwargs or {}
        made = self._made(func, args, kwargs)
        return func(*args, **kwargs) if made is None else made

    def _made(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        if not args or not isinstance(args[0], torch.Tensor) or args[0].device.type != "cpu":
            return None
        first: torch.Tensor = args[0]
        if torch.is_grad_enabled() and first.requires_grad:  # part of a model's pass
            return None
        if func in _LIKE and self._large(first.shape, first.dtype) and "dtype" not in kwargs:
            return self._filled(first.shape, first.dtype, _LIKE[func])
        if func in _NEW and "dtype" not in kwargs:
            shape = torch.Size(args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:])
            return self._filled(shape, first.dtype, _NEW[func]) if self._large(shape, first.dtype) else None
        if func in _COPIES and self._large(first.shape, first.dtype):
            return self._filled(first.shape, first.dtype, None).copy_(first)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64:
            return self._chosen(first, args[1])
        if func in _INTO and kwargs.get("out") is None:
            return self._computed(_INTO[func], args, kwargs)
        return None

    def _chosen(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
        """Some rows, copied; None if they are not large."""
        shape = torch.Size((*index.shape, *rows.shape[1:]))
        if index.ndim != 1 or not self._large(shape, rows.dtype):
            return None
        return torch.index_select(rows, 0, index, out=self._filled(shape, rows.dtype, None))

    def _computed(self, func: Function, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The result of an operation entry by entry; None if it is not large, or of another kind than its parts."""
        parts = [part for part in args if isinstance(part, torch.Tensor)]
        kinds = {part.dtype for part in parts if part.ndim > 0}
        if len(kinds) != 1 or any(part.requires_grad for part in parts):
            return None
        shape, kind = torch.broadcast_shapes(*(part.shape for part in parts)), kinds.pop()  # type: ignore[no-untyped-call]
        if not self._large(shape, kind):
            return None
        result: torch.Tensor = func(*args, **{**kwargs, "out": self._filled(shape, kind, None)})
        return result

    def _large(self, shape: torch.Size, kind: torch.dtype) -> bool:
        return prod(shape) * kind.itemsize >= self.least

    def _filled(self, shape: torch.Size, kind: torch.dtype, value: float | None) -> torch.Tensor:
        """A tensor in a file without a name; a new file is full of zeros."""
        size = prod(shape) * kind.itemsize
        place = self._mapped(size)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(place, self._freed, size)
        self._maps.add(place)
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(target=_release, args=(self._maps,), name="mixwise-rows", daemon=True)
            self._watch.start()
        tensor = torch.frombuffer(place, dtype=kind).view(shape)
        return tensor if not value else tensor.fill_(value)

    def _mapped(self, size: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self.folder, prefix="mixwise-rows-") as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # take the room now, and not when a page is written
                    os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise TrainingError(
                f"rows: disk cannot make a file of {size / 1e9:.1f} GB in {self.folder}: {error.strerror}; "
                f"{'make room there' if full else 'choose a folder where files can be made'}, or name another one "
                f"with rows_dir"
            ) from None

    def _freed(self, size: int) -> None:
        self.live -= size


def _release(maps: weakref.WeakSet[mmap.mmap]) -> None:
    """While there are any: take what this process holds of mapped files out of its memory when that is much.

    Nothing is lost by it, also while somebody works on them: the pages stay in the system's cache or on disk.
    """
    import psutil

    process, tick = psutil.Process(), threading.Event()
    before = _shared(process)
    while len(maps) > 0:
        if _shared(process) - before > RESIDENT:
            for place in list(maps):
                place.madvise(mmap.MADV_DONTNEED)
            before = min(before, _shared(process))
        tick.wait(_TICK)


def _shared(process: psutil.Process) -> int:
    return int(getattr(process.memory_info(), "shared", 0))  # other systems than Linux do not tell


def check_disk(folder: str | Path, needed: int) -> None:
    """Refuse a folder without room for this many bytes, and one that lies in memory."""
    import psutil

    place = _existing(Path(folder))
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    mount = next((parent for parent in (place, *place.parents) if parent in mounts), None)
    if mount is not None and mounts[mount] in ("tmpfs", "ramfs"):
        raise TrainingError(f"rows: disk in {place} would be in memory ({mounts[mount]}); name a folder with rows_dir")
    free = shutil.disk_usage(place).free
    if needed > free:
        raise TrainingError(
            f"rows: disk needs {needed / 1e9:.1f} GB in {place}, and {free / 1e9:.1f} GB are free; make room there, or "
            f"name another folder with rows_dir"
        )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder
