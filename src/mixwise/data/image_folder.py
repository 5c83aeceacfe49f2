"""Images in a tree of folders, one per class, as ImageNet is usually stored:

data_dir/train/<class>/….jpg
data_dir/val/<class>/….jpg       (or validation/, or test/)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.files import Folder
from mixwise.data.image_samples import IMAGENET_MEAN, IMAGENET_STD, Colors, ImageForm, ImageSamples
from mixwise.errors import DataError
from mixwise.parts import part

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_TESTS = ("val", "validation", "test")
_LAYOUT = "expected train/CLASS/*.jpg and val/CLASS/*.jpg in data_dir (or test/ instead of val/)"


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
    """Load images from `data_dir`, decoded on demand: train/CLASS/… and val/CLASS/….

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
