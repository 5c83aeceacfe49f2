"""The IDX files of MNIST and its relatives: four files of bytes, plain or gzipped.

A file is 0, 0, 8 (bytes), the number of axes, the length of each axis as four bytes (most significant first), the data.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.files import Progress, RemoteFile, contents, fetch
from mixwise.errors import DataError

ByteArray: TypeAlias = npt.NDArray[np.uint8]

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_UNSIGNED_BYTE = 8


def published(address: str, md5: tuple[str, str, str, str]) -> tuple[RemoteFile, ...]:
    """The four gzipped files at an address; sums of the training images and labels, then of the test files."""
    return tuple(RemoteFile(f"{name}.gz", f"{address}/{name}.gz", sum_) for name, sum_ in zip(_NAMES, md5, strict=True))


def idx_splits(name: str, folder: Path, files: tuple[RemoteFile, ...], progress: Progress | None) -> Splits:
    """The four files in `folder`, downloaded where missing, as images (N, 1, rows, columns) of 10 classes."""
    paths = [_located(folder, remote, progress) for remote in files]
    return Splits(_dataset(name, *paths[:2]), _dataset(name, *paths[2:]))


def read_idx(path: Path, axes: int) -> ByteArray:
    """The array in an IDX file of bytes with this many axes."""
    content = contents(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: not a whole gzip file ({error}); delete or replace it") from None
    start = 4 + 4 * axes
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, axes]) or len(content) < start:
        raise DataError(
            f"{path}: {len(content)} bytes that start with {content[:4].hex(' ') or 'nothing'}; an IDX file of bytes "
            f"starts with 00 00 08 {axes:02x} and the lengths of {axes} axes; delete or replace it"
        )
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path}: {len(content)} bytes, its header {shape} asks for {expected}; delete or replace it")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def local_file(folder: Path, remote: RemoteFile) -> Path | None:
    """The file in `folder`, plain or gzipped, under one of the names in use."""
    name = remote.name.removesuffix(".gz")
    dotted = name.replace("-idx", ".idx")
    candidates = [folder / f"{stem}{suffix}" for suffix in ("", ".gz") for stem in (name, dotted)]
    return next((path for path in candidates if path.is_file()), None)


def _located(folder: Path, remote: RemoteFile, progress: Progress | None) -> Path:
    if (path := local_file(folder, remote)) is not None:
        return path
    name = remote.name.removesuffix(".gz")
    return fetch(remote, folder, f"put {name} or {name}.gz, and the other three IDX files, into {folder}", progress)


def _dataset(name: str, image_file: Path, label_file: Path) -> Dataset:
    images, labels = read_idx(image_file, axes=3), read_idx(label_file, axes=1)
    if len(images) != len(labels) or len(labels) == 0:
        raise DataError(f"{label_file}: {len(labels)} labels for {len(images)} images; one for each, and at least one")
    if labels.max() > 9:
        raise DataError(f"{label_file}: a label {labels.max()}, expected 0 to 9; delete or replace it")
    x = torch.from_numpy(images.copy())[:, None]  # copied: what lies over bytes cannot be written to
    return Dataset(x, torch.from_numpy(labels.astype(np.int64)), 10, name)
