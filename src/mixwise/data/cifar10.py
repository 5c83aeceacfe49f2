"""CIFAR-10 (Krizhevsky 2009): 60,000 color images of 10 kinds of things, in either of its published layouts.

An image is 3072 bytes: 1024 red, 1024 green, 1024 blue, each 32 × 32 row by row.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.cifar10_pickle import unpickled_batch
from mixwise.data.dataset import Dataset, Splits
from mixwise.data.files import Folder, Progress, RemoteFile, check_md5, contents, data_folder, fetch
from mixwise.errors import DataError
from mixwise.parts import part

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Decoder: TypeAlias = Callable[[bytes, int], tuple[ByteArray, ByteArray]]  # content, images -> (images, 3072), (images,)

_PIXELS = 3 * 32 * 32
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TRAIN, _TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)
_PAGE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Layout:
    """One published form of the data: five training files and a test file, in a folder or in the original archive."""

    folder: str
    suffix: str
    decode: Decoder
    archive: RemoteFile
    images: int = 10_000  # in each file


@part("cifar10", "data", title="CIFAR-10", cite="Krizhevsky 2009")
def cifar10(
    data_dir: Folder | None = None, *, progress: Progress | None = None, layouts: tuple[Layout, ...] | None = None
) -> Splits:
    """50,000 training and 10,000 test images, uint8 (N, 3, 32, 32).

    Takes what it finds in `data_dir/cifar10`: the folder `cifar-10-batches-bin` or `cifar-10-batches-py`, else one of
    the original archives, whose md5 sum is checked. If there is nothing, the binary archive is downloaded.

    Args:
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
        progress: told about the download: file name, bytes so far, bytes in all.
        layouts: where and in which form the data may be; the first is the one that is downloaded.
    """
    layouts = (BINARY, PYTHON) if layouts is None else layouts
    home = data_folder(data_dir, "cifar10")
    for layout in layouts:
        if (home / layout.folder).is_dir():
            return _splits(_from_folder(home / layout.folder, layout), layout)
    for layout in layouts:
        if (home / layout.archive.name).exists():
            check_md5(home / layout.archive.name, layout.archive.md5)
            return _splits(_from_archive(home / layout.archive.name, layout), layout)
    choices = " or ".join(f"{layout.archive.name} or its folder {layout.folder}" for layout in layouts)
    archive = fetch(layouts[0].archive, home, f"put {choices} (from {_PAGE}/cifar.html) into {home}", progress)
    return _splits(_from_archive(archive, layouts[0]), layouts[0])


Files: TypeAlias = dict[str, tuple[str, bytes]]  # data_batch_1 -> where it was found, what it holds


def _from_folder(folder: Path, layout: Layout) -> Files:
    paths = {name: folder / f"{name}{layout.suffix}" for name in _TRAIN + _TEST}
    return {name: (str(path), contents(path)) for name, path in paths.items()}


def _from_archive(archive: Path, layout: Layout) -> Files:
    wanted = {f"{layout.folder}/{name}{layout.suffix}": name for name in _TRAIN + _TEST}
    found: Files = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:  # in the order of the file: jumping about would decompress it anew each time
                name = wanted.get(member.name)
                file = tar.extractfile(member) if name else None
                if name and file:
                    found[name] = (f"{archive}, {member.name}", file.read())
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive}: not a whole tar.gz archive ({error}); delete or replace it") from None
    if missing := [path for path, name in wanted.items() if name not in found]:
        raise DataError(f"{archive}: holds no {missing[0]}; delete it or replace it by the original")
    return found


def _splits(files: Files, layout: Layout) -> Splits:
    return Splits(_dataset(files, _TRAIN, layout), _dataset(files, _TEST, layout))


def _dataset(files: Files, names: tuple[str, ...], layout: Layout) -> Dataset:
    batches = [_decoded(*files[name], layout) for name in names]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    y = torch.from_numpy(labels.astype(np.int64))
    return Dataset(torch.from_numpy(pixels).reshape(-1, 3, 32, 32), y, len(_NAMES), "cifar10", _NAMES)


def _decoded(where: str, content: bytes, layout: Layout) -> tuple[ByteArray, ByteArray]:
    try:
        pixels, labels = layout.decode(content, layout.images)
    except DataError as error:
        raise DataError(f"{where}: {error}; delete it or replace it by the original") from None
    if labels.max() >= len(_NAMES):
        raise DataError(f"{where}: a label {labels.max()}, expected 0 to 9; delete it or replace it by the original")
    return pixels, labels


def _binary_batch(content: bytes, images: int) -> tuple[ByteArray, ByteArray]:
    """Records of a label byte and 3072 bytes of an image."""
    expected = images * (1 + _PIXELS)
    if len(content) != expected:
        raise DataError(f"{len(content)} bytes, expected {expected} ({images} records of {1 + _PIXELS})")
    records = np.frombuffer(content, np.uint8).reshape(images, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _python_batch(content: bytes, images: int) -> tuple[ByteArray, ByteArray]:
    """A pickled dictionary with `data` and `labels`."""
    pixels, labels = unpickled_batch(content)
    if pixels.shape != (images, _PIXELS) or labels.shape != (images,):
        raise DataError(f"data {pixels.shape}, labels {labels.shape}; expected ({images}, {_PIXELS}) and ({images},)")
    return pixels, labels


BINARY = Layout(
    "cifar-10-batches-bin",
    ".bin",
    _binary_batch,
    RemoteFile("cifar-10-binary.tar.gz", f"{_PAGE}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
)
PYTHON = Layout(
    "cifar-10-batches-py",
    "",
    _python_batch,
    RemoteFile("cifar-10-python.tar.gz", f"{_PAGE}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
)
