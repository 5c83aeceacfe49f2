"""Images, decoded on demand and ahead of time by the workers of a `DataLoader`, and images in a tree of folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from mixwise.data.dataset import Dataset, IndexedSamples, Request, Splits
from mixwise.data.decoding import Source, decoded, reason
from mixwise.data.files import Folder
from mixwise.errors import DataError
from mixwise.parts import part
from mixwise.seeding import stream

Colors: TypeAlias = tuple[float, float, float]

IMAGENET_MEAN: Colors = (0.485, 0.456, 0.406)
IMAGENET_STD: Colors = (0.229, 0.224, 0.225)

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_TESTS = ("val", "validation", "test")
_LAYOUT = "expected train/CLASS/*.jpg and val/CLASS/*.jpg in data_dir (or test/ instead of val/)"
_MAX_WORKERS = 16  # unless more are requested


class ImageSource(Protocol):
    """A sequence of encoded images."""

    def __len__(self) -> int: ...

    def source(self, index: int) -> Source:
        """Return the path of an image, or the bytes of its file."""

    def name(self, index: int) -> str:
        """Return the name of an image for error messages."""


@dataclass(frozen=True)
class ImageForm:
    """The transformation of every image.

    Args:
        size: pixels per side.
        augment: whether training uses random crops, flipped at random; otherwise the center, as evaluation does.
        mean, std: of red, green and blue, in 0 … 1; None keeps the bytes, where v means v / 255.
    """

    size: int = 224
    augment: bool = True
    mean: Colors | None = IMAGENET_MEAN
    std: Colors | None = IMAGENET_STD

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"size = {self.size}; it must be a number of pixels per side, such as 224")
        mean, std = self.mean, self.std
        if not (mean is std if mean is None or std is None else len(mean) == len(std) == 3 and min(std) > 0):
            raise DataError(f"mean = {mean}, std = {std}; give three numbers each, std above 0, or None for both")


class ImageSamples(IndexedSamples):
    """The `Samples` of an image source: (b, 3, size, size) in float32, or in uint8 without mean and std.

    Random crops depend only on the seed of a batch and the position in it, not on the number of workers.

    Args:
        source: the encoded images.
        form: the transformation of every image.
        workers: the number of processes that decode a stream; 0 decodes in this process. By default one per available
            core, up to 16, divided by the number of processes that torchrun started on this machine.
    """

    def __init__(self, source: ImageSource, form: ImageForm, workers: int | None = None) -> None:
        super().__init__(len(source))
        if workers is not None and workers < 0:
            raise DataError(f"workers = {workers}; it must be a number of processes, 0 for none")
        self.source, self.form = source, form
        self.workers = default_workers() if workers is None else workers

    @property
    def kind(self) -> str:
        """A description of one sample."""
        return f"images of {self.form.size} × {self.form.size} pixels"

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """Decode the images at these positions in this process; with draws, augmented if the form says so."""
        return self._normalized(_Batches(self.source, self.form)[self.index[indices].tolist(), draws])

    def stream(self, requests: Iterable[Request]) -> Iterator[torch.Tensor]:
        """Yield the batch of each request, in order; every worker decodes up to two batches ahead.

        The workers end when the iterator is exhausted, closed or deleted.
        """
        if self.workers == 0:
            yield from super().stream(requests)
            return
        loader = DataLoader(
            _Batches(self.source, self.form),
            batch_size=None,  # an item is a batch already
            sampler=((self.index[indices].tolist(), draws) for indices, draws in requests),
            num_workers=self.workers,
            worker_init_fn=_ignore_warnings,  # of Pillow, about files that it can read nevertheless
            generator=torch.Generator(),  # by default it would draw from the global one
        )
        failure = None
        try:
            for batch in loader:
                yield self._normalized(batch)
        except (RuntimeError, OSError, EOFError) as error:
            failure = str(error).partition("\n")[0]
        if failure is not None:  # raised here, since the traceback of `error` would keep the other workers alive
            raise DataError(f"a process that decodes images failed ({failure}); set workers=0 to decode without any")

    def _normalized(self, batch: torch.Tensor | DataError) -> torch.Tensor:
        if isinstance(batch, DataError):
            raise batch
        if self.form.mean is None or self.form.std is None:
            return batch
        mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (self.form.mean, self.form.std))
        return batch.float().sub_(mean).div_(std)


@dataclass(frozen=True)
class _Batches(TorchDataset[torch.Tensor | DataError]):
    """Maps a request (positions, draws) to the pixels of a batch, uint8 (b, 3, size, size).

    An error is returned: a DataLoader would put a traceback into the message of one that is raised.
    """

    source: ImageSource
    form: ImageForm

    def __getitem__(self, request: tuple[list[int], int | None]) -> torch.Tensor | DataError:
        positions, draws = request
        pixels = bytearray()
        for place, at in enumerate(positions):
            seed = None if draws is None or not self.form.augment else stream(draws, "crop", place)
            try:
                pixels += decoded(self.source.source(at), self.form.size, seed)
            except DataError as error:
                return error
            except Exception as error:
                found = f"{self.source.name(at)} cannot be decoded: {reason(error)}"
                return DataError(f"{found}; replace it, or remove it from the data")
        return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(-1, 3, self.form.size, self.form.size))


def _ignore_warnings(worker: int) -> None:
    warnings.simplefilter("ignore")


def default_workers() -> int:
    """Return one worker per available core, up to 16, shared by the processes of torchrun on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MAX_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))


# --- folders, one per class ---
@part("image-folder", "data", title="folders of images")
def image_folder(
    data_dir: Folder,
    size: int = 224,
    *,
    test: str | None = None,
    augment: bool = True,
    mean: Colors | None = IMAGENET_MEAN,
    std: Colors | None = IMAGENET_STD,
    workers: int | None = None,
) -> Splits:
    """Load images from a tree of folders, decoded on demand: train/CLASS/….jpg and val/CLASS/….jpg in `data_dir`.

    Classes are numbered in the order of their folders' names; a class may have subfolders. Training uses random resized
    crops, flipped at random (8 to 100 % of the area, aspect ratios from 3:4 to 4:3); evaluation uses the central
    size × size pixels after the shorter side is resized to size · 256/224. Both are standard for ImageNet.

    Args:
        data_dir: contains the folders.
        size: pixels per side.
        test: the folder of the test images; by default the first of val, validation and test that exists.
        augment: whether training uses random crops; otherwise the same as evaluation.
        mean, std: the images become (v / 255 − mean) / std; None keeps bytes, which a task reads as v / 255.
        workers: the number of processes that decode; by default one per core, up to 16; 0 for none.
    """
    form, root = ImageForm(size, augment, mean, std), Path(data_dir).expanduser()
    held = root / (test or next((name for name in _TESTS if (root / name).is_dir()), _TESTS[0]))
    for folder in (root, root / "train", held):
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; {_LAYOUT}")
    classes = _class_folders(root / "train")
    for name in _class_folders(held):
        if name not in classes:
            raise DataError(f"unknown label {name!r}: there is a folder {held / name}, but no {root / 'train' / name}")

    def dataset(folder: Path) -> Dataset:
        listing = ImageListing(folder)
        labels = torch.from_numpy(np.array([classes.index(name) for name in listing.folders])[listing.folder_of])
        return Dataset(ImageSamples(listing, form, workers), labels, len(classes), root.name, tuple(classes))

    return Splits(dataset(root / "train"), dataset(held))


class ImageListing:
    """The images in the class folders of a folder, sorted; a million of them take about 40 MB.

    Args:
        root: the folder of the class folders.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.folders = root, _class_folders(root)
        images = [sorted(_images(os.path.join(root, folder))) for folder in self.folders]
        if [] in images:
            empty = root / self.folders[images.index([])]
            raise DataError(f"{empty}: no images ({', '.join(SUFFIXES)}); add some, or remove the folder")
        self.folder_of = np.repeat(np.arange(len(images)), [len(names) for names in images])
        # One array instead of an object per name: an object of Python is three times as large as a name, and counting
        # references to it would copy it into every worker.
        self._names = np.array([os.fsencode(name) for names in images for name in names])

    def __len__(self) -> int:
        return len(self._names)

    def source(self, index: int) -> str:
        """Return the path of an image."""
        return os.path.join(self.root, self.folders[self.folder_of[index]], os.fsdecode(bytes(self._names[index])))

    name = source


def _class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted."""
    entries = list(_entries(folder))
    found = sorted(entry.name for entry in entries if entry.is_dir())
    flat = [entry.name for entry in entries if not entry.is_dir() and entry.name.lower().endswith(SUFFIXES)]
    if flat:
        hint = "" if found else "; the validation images of ImageNet come without, sort them by their labels"
        raise DataError(f"{folder / flat[0]} is not in a class folder; {_LAYOUT}{hint}")
    if not found:
        raise DataError(f"{folder}: no class folders; {_LAYOUT}")
    return found


def _images(folder: str, prefix: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the images of a folder and its subfolders, as paths relative to it."""
    above = (*above, os.path.realpath(folder))
    for entry in _entries(folder):
        if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
            yield prefix + entry.name
        elif entry.is_dir() and not (entry.is_symlink() and os.path.realpath(entry.path) in above):  # a cycle
            yield from _images(entry.path, f"{prefix}{entry.name}/", above)


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from None
