"""CIFAR-10 (Krizhevsky 2009): 60,000 color images in 10 classes, in either of its published layouts.

An image is 3072 bytes: 1024 red, 1024 green, 1024 blue, each 32 × 32 row by row.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.files import Folder, RemoteFile, contents, data_folder, fetch
from mixwise.errors import DataError
from mixwise.parts import part

Array: TypeAlias = npt.NDArray[Any]

_PIXELS = 3 * 32 * 32
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TRAIN, _TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)
_PAGE = "https://www.cs.toronto.edu/~kriz"


@part("cifar10", "data", title="CIFAR-10", cite="Krizhevsky 2009")
def cifar10(data_dir: Folder | None = None) -> Splits:
    """Load CIFAR-10: 50,000 training and 10,000 test images, uint8 (N, 3, 32, 32).

    Reads the folder `cifar-10-batches-bin` or `cifar-10-batches-py` in `data_dir/cifar10`, else one of the original
    archives, whose md5 sum is checked. If there is none of them, the binary archive is downloaded.

    Args:
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
    """
    layout, where, files = _found(data_folder(data_dir, "cifar10"))

    def dataset(names: tuple[str, ...]) -> Dataset:
        batches = [_decoded(f"{where}/{name}{layout.suffix}", files[name], layout) for name in names]
        pixels, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*batches, strict=True))
        return Dataset(pixels.reshape(-1, 3, 32, 32), labels.long(), len(_NAMES), "cifar10", _NAMES)

    return Splits(dataset(_TRAIN), dataset(_TEST))


@dataclass(frozen=True)
class Layout:
    """A published form of the data: five training files and a test file, in a folder or in the original archive."""

    folder: str
    suffix: str
    decode: Callable[[bytes], tuple[Array, Array]]  # content -> (images, 3072), (images,)
    archive: RemoteFile
    images: int = 10_000  # per file


def _found(home: Path) -> tuple[Layout, str, dict[str, bytes]]:
    """Return the layout of the data, where it was found, and the content of each file."""
    for layout in LAYOUTS:
        if (folder := home / layout.folder).is_dir():
            return layout, str(folder), {n: contents(folder / f"{n}{layout.suffix}") for n in _TRAIN + _TEST}
    layout = next((layout for layout in LAYOUTS if (home / layout.archive.name).exists()), LAYOUTS[0])
    archive = home / layout.archive.name
    if not archive.exists():
        choices = " or ".join(f"{layout.archive.name} or its folder {layout.folder}" for layout in LAYOUTS)
        fetch(layout.archive, home, f"put {choices} (from {_PAGE}/cifar.html) into {home}")
    return layout, f"{archive}, {layout.folder}", _unpacked(archive, layout)


def _unpacked(archive: Path, layout: Layout) -> dict[str, bytes]:
    packed = io.BytesIO(contents(archive, layout.archive.md5))
    wanted = {f"{layout.folder}/{name}{layout.suffix}": name for name in _TRAIN + _TEST}
    found = {}
    try:
        with tarfile.open(fileobj=packed, mode="r:gz") as tar:
            for member in tar:  # in the order of the file: random access would decompress it again each time
                if member.name in wanted and (file := tar.extractfile(member)):
                    found[wanted[member.name]] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive}: not a complete tar.gz archive ({error}); delete or replace it") from None
    if missing := [path for path, name in wanted.items() if name not in found]:
        raise DataError(f"{archive}: contains no {missing[0]}; delete it or replace it by the original")
    return found


def _decoded(where: str, content: bytes, layout: Layout) -> tuple[Array, Array]:
    try:
        pixels, labels = layout.decode(content)
        found, expected = (pixels.shape, labels.shape), ((layout.images, _PIXELS), (layout.images,))
        if found != expected:
            raise DataError(f"data and labels have shapes {found}, expected {expected}")
        if len(wrong := labels[(labels < 0) | (labels >= len(_NAMES))]):
            raise DataError(f"a label {wrong[0]}, expected 0 to 9")
    except DataError as error:
        raise DataError(f"{where}: {error}; delete it or replace it by the original") from None
    return pixels, labels


def _binary_batch(content: bytes) -> tuple[Array, Array]:
    """Records of a label byte and the 3072 bytes of an image."""
    if len(content) % (1 + _PIXELS):
        raise DataError(f"{len(content)} bytes, expected records of {1 + _PIXELS} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _python_batch(content: bytes) -> tuple[Array, Array]:
    """A dictionary pickled by Python 2, with `data`, a NumPy array of bytes, and `labels`, a list of numbers."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, dtype, fortran, raw = batch[b"data"].state
        if dtype.arguments[0] != b"u1" or fortran or not isinstance(raw, bytes):
            raise DataError("its data is not an array of bytes in C order")
        return np.frombuffer(raw, np.uint8).reshape(shape), np.array(batch[b"labels"], np.int64)
    except DataError:
        raise
    except Exception as error:  # a broken pickle can fail in any way
        raise DataError(f"not a batch of CIFAR-10 ({type(error).__name__}: {error})") from None


class _Unpickler(pickle.Unpickler):
    """Reads a pickle without executing it.

    A pickle may name any function and have it called. The three names that a batch needs are replaced by a class that
    records its arguments, and every other name is rejected; not even NumPy's own reconstruction runs.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for a name that a batch needs; nothing is imported."""
        if (module, name) not in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            raise DataError(f"the pickle requires {module}.{name}, which no batch of CIFAR-10 does")
        return _Recorded


class _Recorded:
    """The arguments of a call in a pickle, and the state that it sets afterwards."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


LAYOUTS = tuple(
    Layout(folder, suffix, decode, RemoteFile(name, f"{_PAGE}/{name}", md5))
    for folder, suffix, decode, name, md5 in (
        ("cifar-10-batches-bin", ".bin", _binary_batch, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ("cifar-10-batches-py", "", _python_batch, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    )
)
