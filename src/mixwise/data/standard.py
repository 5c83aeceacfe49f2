"""Standard datasets: CIFAR-10 (Krizhevsky 2009), MNIST (LeCun, Cortes and Burges 1998) and Fashion-MNIST (Xiao, Rasul
and Vollgraf 2017) from the files of their authors; and two that need no files, digits and a Gaussian mixture.

CIFAR-10 has two layouts; an image is 3072 bytes: 1024 red, 1024 green, 1024 blue, each 32 × 32 row by row. The others
are IDX files of bytes, which may be gzipped: 0, 0, 8, the number of axes, the length of each axis as four bytes (most
significant first), and the data.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Dataset, Splits, holdout
from mixwise.data.files import Folder, RemoteFile, contents, data_folder, fetch
from mixwise.errors import DataError
from mixwise.parts import part
from mixwise.seeding import numpy_generator

Array: TypeAlias = npt.NDArray[Any]

# --- CIFAR-10 ---
_PIXELS = 3 * 32 * 32
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TRAIN, _TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)
_PAGE = "https://www.cs.toronto.edu/~kriz"
# The names that the pickle of an array refers to; the function is where the installed NumPy has it.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@part("cifar10", "data", title="CIFAR-10", cite="Krizhevsky 2009")
def cifar10(data_dir: Folder | None = None) -> Splits:
    """Load CIFAR-10: 50,000 training and 10,000 test images, uint8 (N, 3, 32, 32).

    Reads the folder `cifar-10-batches-bin` or `cifar-10-batches-py` in `data_dir/cifar10`, else one of the original
    archives, whose checksum is verified. If there is none of them, the binary archive is downloaded.

    Args:
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
    """
    layout, where, files = _found(data_folder(data_dir, "cifar10"))

    def dataset(names: tuple[str, ...]) -> Dataset:
        batches = [_decoded(f"{where}/{name}{layout.suffix}", files[name], layout) for name in names]
        pixels, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*batches, strict=True))
        return Dataset(pixels.reshape(-1, 3, 32, 32), labels.long(), len(_CLASSES), "cifar10", _CLASSES)

    return Splits(dataset(_TRAIN), dataset(_TEST))


@dataclass(frozen=True)
class Layout:
    """A published form of the data: five training files and a test file, in a folder or in the original archive."""

    folder: str
    suffix: str
    decode: Callable[[bytes], tuple[Array, Array]]  # content -> (images, 3072), (images,)
    archive: RemoteFile
    images: int = 10_000  # per file
    md5: Mapping[str, str] = field(default_factory=dict)  # of files in a folder, where only the published ones are read


def _found(home: Path) -> tuple[Layout, str, dict[str, bytes]]:
    """Return the layout of the data, where it was found, and the content of each file."""
    for layout in LAYOUTS:
        if (folder := home / layout.folder).is_dir():
            files = {name: contents(folder / f"{name}{layout.suffix}") for name in _TRAIN + _TEST}
            for name in files.keys() & layout.md5.keys():
                if (found := hashlib.md5(files[name], usedforsecurity=False).hexdigest()) != layout.md5[name]:
                    remedy = f"delete it or replace it by the original, or use {LAYOUTS[0].folder}"
                    raise DataError(f"{folder / name}: md5 {found}, expected {layout.md5[name]}; {remedy}")
            return layout, str(folder), files
    layout = next((layout for layout in LAYOUTS if (home / layout.archive.name).exists()), LAYOUTS[0])
    archive = home / layout.archive.name
    if not archive.exists():
        choices = " or ".join(f"{layout.archive.name} or its folder {layout.folder}" for layout in LAYOUTS)
        fetch(layout.archive, home, f"put {choices} (from {_PAGE}/cifar.html) into {home}")
    return layout, f"{archive}, {layout.folder}", _unpacked(archive, layout)


def _unpacked(archive: Path, layout: Layout) -> dict[str, bytes]:
    packed = io.BytesIO(contents(archive, layout.archive.sha256))
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
        if found != expected or pixels.dtype != np.uint8:
            raise ValueError(f"{pixels.dtype} data and labels of shapes {found}, expected uint8 of {expected}")
        if len(wrong := labels[(labels < 0) | (labels >= len(_CLASSES))]):
            raise ValueError(f"a label {wrong[0]}, expected 0 to 9")
    except Exception as error:  # a broken pickle can fail in any way
        reason = f"{where}: not a batch of CIFAR-10 ({type(error).__name__}: {error})"
        raise DataError(f"{reason}; delete it or replace it by the original") from None
    return pixels, labels


def _binary_batch(content: bytes) -> tuple[Array, Array]:
    """Decode records of a label byte and the 3072 bytes of an image."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _python_batch(content: bytes) -> tuple[Array, Array]:
    """Decode a dictionary pickled by Python 2, with `data`, a NumPy array of bytes, and `labels`, a list of numbers."""
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return batch[b"data"], np.array(batch[b"labels"], np.int64)


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain values only: a pickle may name any function and have it called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the three names that an array needs."""
        if (module, name) not in _ALLOWED:
            raise DataError(f"the pickle requires {module}.{name}, which no batch of CIFAR-10 does")
        return _ALLOWED[module, name]


_BINARY = RemoteFile(
    f"{_PAGE}/cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
_PYTHON = RemoteFile(
    f"{_PAGE}/cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
)
_PICKLED = {  # a damaged pickle may ask for any amount of memory
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
LAYOUTS = (
    Layout("cifar-10-batches-bin", ".bin", _binary_batch, _BINARY),
    Layout("cifar-10-batches-py", "", _python_batch, _PYTHON, md5=_PICKLED),
)


# --- MNIST and Fashion-MNIST ---
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MAX_IDX = 1 << 30  # bytes; MNIST has 47 million
_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _published(address: str, *sums: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{address}/{name}.gz", sum_) for name, sum_ in zip(_IDX, sums, strict=True))


FILES: Mapping[str, tuple[RemoteFile, ...]] = {
    "mnist": _published(  # a copy kept by the PyTorch project, since the authors no longer offer the files
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion_mnist": _published(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
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


def _splits(dataset: str, data_dir: Folder | None, class_names: tuple[str, ...] = ()) -> Splits:
    folder, paths = data_folder(data_dir, dataset), []
    for remote, name in zip(FILES[dataset], _IDX, strict=True):
        names = [stem + suffix for suffix in ("", ".gz") for stem in (name, name.replace("-idx", ".idx"))]
        local = next((folder / name for name in names if (folder / name).is_file()), None)
        remedy = f"put {name} or {name}.gz, and the other three IDX files, into {folder}"
        paths.append(local or fetch(remote, folder, remedy))
    return Splits(*(_dataset(dataset, class_names, *pair) for pair in (paths[:2], paths[2:])))


def _dataset(name: str, class_names: tuple[str, ...], image_file: Path, label_file: Path) -> Dataset:
    images, labels = _read_idx(image_file, axes=3), _read_idx(label_file, axes=1)
    x = torch.from_numpy(images.copy())[:, None]  # an array over `bytes` cannot be written to
    try:
        return Dataset(x, torch.from_numpy(labels.astype(np.int64)), 10, name, class_names)
    except DataError as error:
        raise DataError(f"{label_file}: {error}; delete or replace it") from None


def _read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    file: io.BytesIO | gzip.GzipFile = io.BytesIO(contents(path))
    file = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
    start = 4 + 4 * axes
    try:  # no more is decompressed than the header announces
        header = file.read(start)
        if header[:4] != bytes([0, 0, 8, axes]) or len(header) < start:
            found = f"{len(header)} bytes that start with {header[:4].hex(' ') or 'nothing'}"
            raise DataError(f"{path}: {found}; expected 00 00 08 {axes:02x} and the lengths of {axes} axes; replace it")
        shape = tuple(np.frombuffer(header[4:], ">u4").tolist())
        if (expected := math.prod(shape)) > _MAX_IDX:
            raise DataError(f"{path}: its header {shape} announces more than {_MAX_IDX / 1e9:.1f} GB; replace it")
        content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file ({error}); delete or replace it") from None
    if len(content) != expected:
        found = f"{start + len(content)} bytes" if len(content) < expected else "more"
        raise DataError(f"{path}: {found}, but its header {shape} requires {start + expected}; replace it")
    return np.frombuffer(content, np.uint8).reshape(shape)


# --- without files ---
_MAX_DRAWN = 10**8  # numbers of a Gaussian mixture: 1.2 GB while it is drawn


@part("digits", "data", title="handwritten digits of 8 × 8 pixels")
def digits() -> Splits:
    """Load 1,438 training and 359 test images, float32 (N, 1, 8, 8) in [0, 1]; the random split is always the same.

    They come with scikit-learn (UCI Optical Recognition of Handwritten Digits, test part).
    """
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16).float()[:, None]  # each value counts the dark pixels of a 4 × 4 block
    whole = Dataset(x, torch.from_numpy(bunch.target).long(), 10, "digits")
    return Splits(*holdout(whole, 0.2, seed=0))


@part("gaussian-mixture", "data", title="Gaussian mixture")
def gaussian_mixture(
    classes: int = 10, dim: int = 20, samples: int = 5000, spread: float = 1.0, seed: int = 0
) -> Splits:
    """Draw x = c_y + spread · ε with centers c_k ~ N(0, I) and ε ~ N(0, I), float32 (N, dim); 80 % for training.

    Args:
        classes: the number of centers; all labels are equally frequent, up to one sample.
        dim: the length of x.
        samples: for training and testing together.
        spread: 0 puts every point on its center; two centers are about √(2 dim) apart.
        seed: of the centers, the points and the split.
    """
    if classes < 1 or dim < 1 or samples < max(classes, 2) or not 0 <= spread < np.inf:
        found = f"classes = {classes}, dim = {dim}, samples = {samples}, spread = {spread}"
        raise DataError(f"{found}; use at least 1 class, 1 dimension, 2 samples, a sample per class, and spread ≥ 0")
    if (samples + classes) * dim > _MAX_DRAWN:
        raise DataError(f"samples = {samples}, dim = {dim} make more than {_MAX_DRAWN:.0e} numbers; use fewer")
    stream = numpy_generator(seed, "gaussian mixture")
    centers = stream.standard_normal((classes, dim))
    y = np.arange(samples) % classes
    x = centers[y] + spread * stream.standard_normal((samples, dim))
    whole = Dataset(torch.from_numpy(x).float(), torch.from_numpy(y).long(), classes, "gaussian mixture")
    return Splits(*holdout(whole, 0.2, seed))
