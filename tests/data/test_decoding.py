"""Crops of images compared with Pillow, with an independent sampler, and with positions read back from the pixels."""

import io
import math
import random

import numpy as np
import pytest
from PIL import Image
from scipy.stats import ks_2samp
from sklearn.datasets import load_sample_images

from builders import cases
from image_trees import encoded, picture, ramps
from mixwise.data import decoding
from mixwise.data.decoding import center_box, decoded, random_box

SIZE = 32


def pixels(source, size=SIZE, seed=None):
    """(size, size, 3), as NumPy shows an image."""
    return np.frombuffer(decoded(source, size, seed), np.uint8).reshape(3, size, size).transpose(1, 2, 0).astype(int)


def resized_then_cropped(image, size):
    """The usual two operations: the shorter side to size · 256/224, then the middle."""
    width, height = image.size
    shorter = round(size * 256 / 224)
    if width <= height:
        w, h = shorter, int(shorter * height / width)
    else:
        w, h = int(shorter * width / height), shorter
    resized = image.resize((w, h), Image.Resampling.BILINEAR)
    left, top = round((w - size) / 2), round((h - size) / 2)
    return np.asarray(resized.crop((left, top, left + size, top + size))).astype(int)


# --- evaluation: the middle ---


@pytest.mark.parametrize("shape", [(48, 48), (61, 37), (37, 61), (20, 17), (200, 131), (9, 120), (256, 256)])
@pytest.mark.parametrize("size", [16, 32])
def test_the_middle_is_that_of_the_resized_image(shape, size):
    image = picture(0, 1, *shape)
    assert np.abs(pixels(encoded(image), size) - resized_then_cropped(image, size)).max() <= 1  # rounding
    box = center_box(1, 5000, 32)  # resized whole, it would be 185,000 pixels high
    assert 0 <= box[0] <= box[2] <= 1


@pytest.mark.parametrize("number", [0, 1])
@cases("size, fraction", (32, True), (64, True), (224, False))
def test_large_photographs_are_decoded_at_a_fraction_of_their_size(number, size, fraction, monkeypatch):
    """The middle, and random crops, which are where they would be in the whole photograph."""
    source = encoded(Image.fromarray(load_sample_images().images[number]), "JPEG", quality=92)  # 640 × 427
    seeds = [None, *(range(12) if size == 32 else ())]
    fast = [pixels(source, size, seed) for seed in seeds]
    monkeypatch.setattr(decoding, "_SPARE", 1e9)
    differences = [np.abs(found - pixels(source, size, seed)) for found, seed in zip(fast, seeds, strict=True)]
    assert (differences[0].mean() > 0) == fraction
    assert differences[0].mean() < 1  # of 255: what docs/text-and-images.md says
    assert differences[0].max() < 12
    assert any(difference.any() for difference in differences[1:]) == (len(seeds) > 1)
    assert max(difference.mean() for difference in differences) < 1.2


# --- training: random crops ---


def box_and_flip(image):
    """Where a crop of `ramps` was, from its pixels: value = edge + (i + ½) · side / size − ½, so a line fits it."""
    at = np.arange(2, len(image) - 2) + 0.5  # beyond an edge, the last pixel is repeated
    slope_x, left = np.polyfit(at, image[2:-2, 2:-2, 0].mean(0) + 0.5, 1)
    slope_y, top = np.polyfit(at, image[2:-2, 2:-2, 1].mean(1) + 0.5, 1)
    flip = slope_x < 0
    if flip:
        left, slope_x = left + slope_x * len(image), -slope_x
    return (left, top, left + slope_x * len(image), top + slope_y * len(image)), flip


def test_crops_and_flips_read_back_from_the_pixels():
    source, flips = encoded(ramps(250, 200)), 0
    for seed in range(60):
        found, flip = box_and_flip(pixels(source, 64, seed))
        draw = random.Random(seed)
        assert flip == (draw.random() < 0.5)
        assert found == pytest.approx(random_box(250, 200, draw), abs=0.75)
        flips += flip
    assert 18 <= flips <= 42  # 3 standard deviations around 30


def sampled(width, height, count):
    """The distribution as it is defined: area and log of the ratio uniform, kept if it fits, then a place at random."""
    stream = np.random.default_rng(0)
    area = width * height * stream.uniform(0.08, 1, 20 * count)
    ratio = np.exp(stream.uniform(math.log(3 / 4), math.log(4 / 3), 20 * count))
    w, h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = np.flatnonzero((w <= width) & (h <= height))[:count]
    w, h = w[fits], h[fits]
    left, top = stream.integers(0, width - w + 1), stream.integers(0, height - h + 1)
    return np.stack([left, top, left + w, top + h], axis=1)


@pytest.mark.parametrize("shape", [(500, 375), (300, 300), (200, 520)])
def test_crops_have_the_distribution_that_is_promised(shape):
    boxes = np.array([random_box(*shape, random.Random(seed)) for seed in range(3000)])
    expected = sampled(*shape, 3000)

    def figures(box):
        w, h = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
        place = (box[:, :2] + 0.5) / (np.array(shape) - np.stack([w, h], axis=1) + 1)  # uniform in 0 … 1
        return w * h, w / h, place[:, 0], place[:, 1]

    area, ratio, *_ = figures(boxes)
    assert 0.079 < area.min() / math.prod(shape) < area.max() / math.prod(shape) <= 1
    assert 0.74 < ratio.min() < ratio.max() < 1.35
    for ours, theirs in zip(figures(boxes), figures(expected), strict=True):
        assert ks_2samp(ours, theirs).pvalue > 1e-3
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= shape).all()


@pytest.mark.parametrize(("shape", "box"), [((1000, 10), (493, 0, 506, 10)), ((10, 1000), (0, 493, 10, 506))])
def test_what_cannot_be_cropped_gives_its_middle(shape, box):
    boxes = {random_box(*shape, random.Random(seed)) for seed in range(50)}
    assert box in boxes  # 4:3 and 3:4 are 13 × 10 and 10 × 13
    assert all(0 <= x0 < x1 <= shape[0] and 0 <= y0 < y1 <= shape[1] for x0, y0, x1, y1 in boxes)


# --- colors ---


def transparent_palette():
    image = Image.new("RGBA", (40, 40), (200, 100, 50, 255)).quantize(8)
    image.info["transparency"] = bytes([0, 255])
    return image


@cases(
    "image, kind, color",
    (Image.new("L", (40, 40), 77), "JPEG", (77, 77, 77)),
    (Image.new("LA", (40, 40), (77, 9)), "PNG", (77, 77, 77)),
    (Image.new("1", (40, 40), 1), "PNG", (255, 255, 255)),
    (Image.new("RGBA", (40, 40), (200, 100, 50, 20)), "PNG", (200, 100, 50)),
    (Image.new("P", (40, 40)), "PNG", (0, 0, 0)),
    (transparent_palette(), "PNG", (200, 100, 50)),
    (Image.new("RGB", (40, 40), (200, 100, 50)).convert("CMYK"), "JPEG", (200, 100, 50)),
    (Image.fromarray(np.full((40, 40), 100 * 256 + 3, np.uint16)), "PNG", (100, 100, 100)),
    (Image.new("RGB", (40, 40), (200, 100, 50)), "GIF", (200, 100, 50)),
    (Image.new("RGB", (40, 40), (200, 100, 50)), "WEBP", (200, 100, 50)),
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_every_mode_becomes_red_green_and_blue(image, kind, color):
    options = {"transparency": image.info["transparency"]} if "transparency" in image.info else {}
    for seed in (None, 3):
        found = pixels(encoded(image, kind, **options), SIZE, seed)
        assert np.abs(found - np.array(color)).max() <= 4


def test_an_orientation_noted_by_the_camera_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(0, 0, 60, 40)
    turned = encoded(image, "JPEG", exif=exif)
    assert Image.open(io.BytesIO(turned)).getexif()[0x0112] == 6
    assert np.array_equal(pixels(turned), pixels(encoded(image, "JPEG")))
