"""MNIST (LeCun, Cortes and Burges 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), in their IDX files.

An IDX file of bytes is 0, 0, 8, the number of axes, the length of each axis as four bytes (most significant first), and
the data; it may be gzipped.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.files import Folder, RemoteFile, contents, data_folder, fetch
from mixwise.errors import DataError
from mixwise.parts import part

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _published(address: str, *md5: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{name}.gz", f"{address}/{name}.gz", sum_) for name, sum_ in zip(_NAMES, md5, strict=True))


FILES: Mapping[str, tuple[RemoteFile, ...]] = {
    "mnist": _published(  # a copy kept by the PyTorch project, since the authors no longer offer the files
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _published(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


@part("mnist", "data", title="MNIST", cite="LeCun, Cortes and Burges 1998")
def mnist(data_dir: Folder | None = None) -> Splits:
    """Load MNIST: 60,000 training and 10,000 test images of digits, uint8 (N, 1, 28, 28).

    Args:
        data_dir: contains the folder `mnist` with four IDX files; missing files are downloaded there. By default
            `$MIXWISE_DATA`, else `~/.cache/mixwise`.
    """
    return _splits("mnist", data_dir)


@part("fashion-mnist", "data", title="Fashion-MNIST", cite="Xiao et al. 2017")
def fashion_mnist(data_dir: Folder | None = None) -> Splits:
    """Load Fashion-MNIST: 60,000 training and 10,000 test images of clothes, uint8 (N, 1, 28, 28).

    Args:
        data_dir: contains the folder `fashion_mnist` with four IDX files; missing files are downloaded there. By
            default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
    """
    return _splits("fashion_mnist", data_dir, _CLOTHES)


def _local_file(folder: Path, remote: RemoteFile) -> Path | None:
    """Return the path of a file in `folder`, plain or gzipped, under any of its usual names; None if it is missing."""
    name = remote.name.removesuffix(".gz")
    names = [stem + suffix for suffix in ("", ".gz") for stem in (name, name.replace("-idx", ".idx"))]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _splits(name: str, data_dir: Folder | None, class_names: tuple[str, ...] = ()) -> Splits:
    folder, paths = data_folder(data_dir, name), []
    for remote, plain in zip(FILES[name], _NAMES, strict=True):
        remedy = f"put {plain} or {plain}.gz, and the other three IDX files, into {folder}"
        paths.append(_local_file(folder, remote) or fetch(remote, folder, remedy))
    return Splits(*(_dataset(name, class_names, *pair) for pair in (paths[:2], paths[2:])))


def _dataset(name: str, class_names: tuple[str, ...], image_file: Path, label_file: Path) -> Dataset:
    images, labels = _read_idx(image_file, axes=3), _read_idx(label_file, axes=1)
    if len(images) != len(labels) or len(labels) == 0:
        raise DataError(f"{label_file}: {len(labels)} labels for {len(images)} images; expected one per image")
    if labels.max() > 9:
        raise DataError(f"{label_file}: a label {labels.max()}, expected 0 to 9; delete or replace it")
    x = torch.from_numpy(images.copy())[:, None]  # an array over `bytes` cannot be written to
    return Dataset(x, torch.from_numpy(labels.astype(np.int64)), 10, name, class_names)


def _read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    content = contents(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: not a complete gzip file ({error}); delete or replace it") from None
    start = 4 + 4 * axes
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) < start:
        found = f"{len(content)} bytes that start with {content[:4].hex(' ') or 'nothing'}"
        raise DataError(f"{path}: {found}; expected 00 00 08 {axes:02x} and the lengths of {axes} axes; replace it")
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path}: {len(content)} bytes, but its header {shape} requires {expected}; replace it")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
