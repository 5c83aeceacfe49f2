"""Reading images with two workers, against a hand-written DataLoader; the time that training waits for images."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import Measurement, in_turns, medians, speedup
from mixwise.data import ImageSamples, Splits, image_folder
from mixwise.data.dataset import Request
from mixwise.data.images import IMAGENET_MEAN, IMAGENET_STD
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare

WORKERS, BATCH, BATCHES = 2, 32, 6
CLASSES, TRAIN, TEST = 4, 144, 2  # images per class
STEPS = 3


def measurements() -> Iterator[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as place:
            make_photographs(Path(place))
            yield from (_reading(Path(place), size) for size in (224, 64))
            yield _waiting(Path(place))
    finally:
        torch.set_num_threads(threads)


def make_photographs(root: Path) -> None:
    """JPEGs of the size that ImageNet's have on average, 500 × 375 and some 100 kB."""
    stream = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("val", TEST)):
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


def with_mixwise(splits: Splits) -> Callable[[int], None]:
    samples = splits.train.x
    assert isinstance(samples, ImageSamples)
    parts = torch.arange(BATCH * BATCHES).split(BATCH)

    def read(turn: int) -> None:
        for _batch in samples.stream((part, 100 * turn + number) for number, part in enumerate(parts)):
            pass

    return read


def with_data_loader(root: Path, size: int) -> Callable[[int], None]:
    paths = sorted(root.glob("train/*/*.jpg"))[: BATCH * BATCHES]
    loader = torch.utils.data.DataLoader(ByHand(paths, size), BATCH, num_workers=WORKERS)

    def read(_: int) -> None:
        for _batch in loader:
            pass

    return read


def _reading(root: Path, size: int) -> Measurement:
    splits = image_folder(root, size, workers=WORKERS)
    contenders = {"mixwise": (with_mixwise(splits), 1), "DataLoader": (with_data_loader(root, size), 1)}
    in_turns([[0]], contenders)  # files are read into the cache of the system
    seconds = in_turns([[turn] for turn in range(1, 10)], contenders)
    ratio = speedup(seconds["DataLoader"], seconds["mixwise"])
    rates = {name: BATCH * BATCHES / time for name, time in medians(seconds).items()}
    return Measurement(
        f"reading JPEGs of 500 × 375 at {size}, {WORKERS} processes, against DataLoader", ratio, "×", 1.0, "higher",
        f"{rates['mixwise']:.0f} images/s", f"{rates['DataLoader']:.0f} images/s", {"images_per_second": rates},
    )  # fmt: skip


@contextmanager
def waited() -> Iterator[list[float]]:
    """Record how long training waits for each batch, including its normalization."""
    seconds: list[float] = []
    stream = ImageSamples.stream

    def timed(self: ImageSamples, requests: Iterable[Request]) -> Iterator[torch.Tensor]:
        batches = stream(self, requests)
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            seconds.append(time.perf_counter() - start)
            if batch is None:
                return
            yield batch

    ImageSamples.stream = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        ImageSamples.stream = stream  # type: ignore[method-assign]


def _waiting(root: Path) -> Measurement:
    changes = (f"data_dir={root}", "task.partition.kind=iid", f"task.data.options.workers={WORKERS}")
    config = plan_experiment(load_recipe("imagenet-small"), changes).runs["dsgd-momentum-metropolis"]
    with waited() as seconds:
        training = prepare(config, 0).start()
        training.step()  # waits for the first batches
        seconds.clear()
        start = time.perf_counter()
        for _ in range(STEPS):
            training.step()
        whole = time.perf_counter() - start
    share = 100 * sum(seconds) / whole
    return Measurement(
        "waiting for images, share of a step of imagenet-small", share, "%", 10, "lower",
        f"{1000 * sum(seconds) / STEPS:.0f} ms", f"{whole / STEPS:.2f} s per step", {"steps": STEPS},
    )  # fmt: skip
