"""Images in an ordinary tree of folders, one per class, as ImageNet is usually kept:

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
from mixwise.data.partition import IntArray
from mixwise.errors import DataError
from mixwise.parts import part

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_TESTS = ("val", "validation", "test")
_LAYOUT = "expected are train/CLASS/*.jpg and val/CLASS/*.jpg below data_dir (or test/ instead of val/)"


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
    """Images below `data_dir`, decoded when they are needed: train/CLASS/… and val/CLASS/….

    Classes are numbered in the order of their folders' names; a class may have folders inside. Training sees random
    resized crops, mirrored at random (8 to 100 % of the area, 3:4 to 4:3 in shape); evaluation the middle size × size
    pixels after the shorter side was resized to size · 256/224. Both are the usual ones for ImageNet.

    Args:
        data_dir: holds the folders.
        size: pixels per side.
        test: the folder of the test images; by default the first of val, validation and test that is there.
        augment: whether training sees random crops; otherwise the same as evaluation.
        mean, std: the images become (v / 255 − mean) / std; None leaves bytes, which a task reads as v / 255.
        workers: processes that decode; by default one for every core, up to 16; 0 for none.
    """
    form = ImageForm(size, augment, mean and tuple(mean), std and tuple(std))  # type: ignore[arg-type]
    root = Path(data_dir).expanduser()
    train, held = root / "train", root / (test or _test_folder(root))
    for folder in (root, train, held):
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; {_LAYOUT}")
    classes = _class_folders(train)
    number = {name: label for label, name in enumerate(classes)}
    unknown = [name for name in _class_folders(held) if name not in number]
    if unknown:
        raise DataError(
            f"unknown label {unknown[0]!r}: there is a folder {held / unknown[0]}, but no {train / unknown[0]}; "
            f"the classes are the folders of {train}"
        )

    def part(folder: Path) -> Dataset:
        listing = ImageListing(folder)
        labels = torch.from_numpy(np.array([number[name] for name in listing.folders])[listing.folder_of])
        return Dataset(ImageSamples(listing, form, workers), labels, len(classes), root.name, tuple(classes))

    return Splits(part(train), part(held))


class ImageListing:
    """The images below the class folders of a folder, sorted; a million of them take some 40 MB.

    Args:
        root: the folder of the class folders.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = _class_folders(root)
        names: list[bytes] = []
        lengths: list[IntArray] = []
        for folder in self.folders:
            found = sorted(_images(os.path.join(root, folder)))
            if not found:
                raise DataError(
                    f"{root / folder}: no images; a class has at least one ({', '.join(SUFFIXES)}), "
                    f"so put some there or remove the folder"
                )
            # One string per class instead of one per image: an object of Python is three times as large as a name.
            encoded = [os.fsencode(name) for name in found]
            names.append(b"".join(encoded))
            lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        self.folder_of: IntArray = np.repeat(np.arange(len(lengths)), [len(each) for each in lengths])
        self._names, self._ends = b"".join(names), np.cumsum(np.concatenate(lengths))

    def __len__(self) -> int:
        return len(self._ends)

    def source(self, index: int) -> str:
        """The path of an image."""
        start = self._ends[index - 1] if index > 0 else 0
        name = os.fsdecode(self._names[start : self._ends[index]])
        return os.path.join(self.root, self.folders[self.folder_of[index]], name)

    name = source


def _test_folder(root: Path) -> str:
    return next((name for name in _TESTS if (root / name).is_dir()), _TESTS[0])


def _class_folders(folder: Path) -> list[str]:
    """The names of the class folders, sorted."""
    found, flat = [], ""
    with _scanned(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found.append(entry.name)
            elif entry.name.lower().endswith(SUFFIXES):
                flat = entry.name
    if flat:
        hint = "; the validation images of ImageNet come without, sort them by their labels" if not found else ""
        raise DataError(f"{folder / flat} lies in no class folder; {_LAYOUT}{hint}")
    if not found:
        raise DataError(f"{folder}: no class folders; {_LAYOUT}")
    return sorted(found)


def _images(folder: str, inside: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """The images of a folder and of the folders inside it, as paths relative to it."""
    above = (*above, os.path.realpath(folder))
    with _scanned(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                yield inside + entry.name
            elif entry.is_dir() and not (entry.is_symlink() and os.path.realpath(entry.path) in above):  # a circle
                yield from _images(entry.path, inside + entry.name + "/", above)


def _scanned(folder: str | Path) -> os._ScandirIterator[str]:
    try:
        return os.scandir(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from None
