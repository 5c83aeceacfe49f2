"""Reading images with two worker processes: a DataLoader around a hand-written data set."""

from __future__ import annotations

import math
import random
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mixwise.data import ImageSamples, image_folder
from mixwise.data.images import IMAGENET_MEAN, IMAGENET_STD

from .measure import Benchmark, Contestant, Contestants

WORKERS, BATCH, BATCHES, CLASSES = 2, 32, 6, 4


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    for size in (224, 64):
        yield Benchmark(
            f"Reading JPEGs of 500 × 375 at {size} × {size}, 2 processes: how much faster than a DataLoader?",
            partial(readers, size, 1 if tiny else BATCHES), 1.0, "DataLoader", rounds=9, clock="wall",
        )  # fmt: skip


def readers(size: int, batches: int) -> Contestants:
    folder = tempfile.TemporaryDirectory()
    root, count = Path(folder.name), BATCH * batches
    make_photographs(root, count)
    samples = image_folder(root, size, workers=WORKERS).train.x
    assert isinstance(samples, ImageSamples)
    parts = torch.arange(count).split(BATCH)
    loader = torch.utils.data.DataLoader(ByHand(sorted(root.glob("train/*/*.jpg")), size), BATCH, num_workers=WORKERS)

    def ours(i: int) -> None:
        for _batch in samples.stream((part, 100 * i + number) for number, part in enumerate(parts)):
            pass

    def theirs(_: int) -> None:
        for _batch in loader:
            pass

    weakref.finalize(ours, folder.cleanup)
    return {"mixwise": Contestant(ours, count), "DataLoader": Contestant(theirs, count)}


def make_photographs(root: Path, images: int) -> None:
    """JPEGs of the size that ImageNet's have on average, 500 × 375 and some 100 kB."""
    stream = np.random.default_rng(0)
    for part, count in (("train", images // CLASSES), ("val", 1)):
        for label in range(CLASSES):
            folder = root / part / f"class-{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                blotches = Image.fromarray(stream.integers(0, 256, (15, 20, 3), dtype=np.uint8))
                smooth = np.asarray(blotches.resize((500, 375), Image.Resampling.BICUBIC)).astype(int)
                grain = stream.integers(-12, 13, (375, 500, 1))
                photo = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
                photo.save(folder / f"{number}.jpg", quality=92)


class ByHand(torch.utils.data.Dataset[torch.Tensor]):
    """The usual hand-written data set: open, crop at random, resize, flip, normalize."""

    def __init__(self, paths: list[Path], size: int) -> None:
        self.paths, self.size = paths, size
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        image = image.crop(self._box(*image.size)).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(self.mean).div_(self.std)

    def _box(self, width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = random.randint(0, width - w), random.randint(0, height - h)
                return left, top, left + w, top + h
        return 0, 0, width, height
