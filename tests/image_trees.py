"""Folders of generated images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def ramps(width: int, height: int) -> Image.Image:
    """Red is the column, green the row, blue is 255 − the column: a crop shows where it was."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=2).astype(np.uint8))


def picture(label: int, number: int, width: int = 56, height: int = 48) -> Image.Image:
    """Blotches around a color that belongs to the label."""
    random = np.random.default_rng([label, number])
    color = np.array([(60, 60, 190), (190, 60, 60), (60, 190, 60), (190, 190, 60)][label % 4])
    small = np.clip(random.normal(color, 40, (6, 7, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The content of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image_tree(root: Path, classes=("ant", "bee", "cat"), train: int = 8, val: int = 4) -> Path:
    """train/CLASS/*.jpg and val/CLASS/*.jpg."""
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(label, number + 1000 * (part == "val")).save(folder / f"{name}_{number}.jpg", quality=90)
    return root
