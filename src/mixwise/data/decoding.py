"""Decoding: which part of an image is cropped, and resized to which size.

Legend: a box is (left, top, right, bottom) in pixels of the image; decoded pixels are bytes, first all red ones, then
green, then blue, (3, size, size).
"""

from __future__ import annotations

import io
import math
import random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from PIL.Image import Image

Source: TypeAlias = str | bytes  # a path, or the bytes of a file
Box: TypeAlias = tuple[float, float, float, float]

_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
_MARGIN = 256 / 224  # evaluation crops the center of an image that is larger by this factor
# A JPEG is decoded at a fraction of its size only if that leaves this many pixels per side for each of ours. Photos
# then differ by at most one of 255 levels on average, and by 10 in a few pixels (with 1 instead of 2: 2.4 and 35).
_SPARE = 2


def decoded(source: Source, size: int, seed: int | None) -> bytes:
    """Return the pixels of an image: with a seed, a random crop, flipped at random; without, the center.

    All color modes are converted to red, green and blue; transparency is dropped. The orientation noted by a camera is
    not applied, as usual for ImageNet.
    """
    from PIL import Image

    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        draw = None if seed is None else random.Random(seed)
        flip = draw is not None and draw.random() < 0.5
        box = center_box(*image.size, size) if draw is None else random_box(*image.size, draw)
        box = _decoded_smaller(image, box, size)
        pixels = _as_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)
        if flip:
            pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return b"".join(band.tobytes() for band in pixels.split())


def random_box(width: int, height: int, draw: random.Random) -> Box:
    """Draw a box of 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3, uniform in area and log ratio.

    If none of ten draws fits into the image, return the largest central box with an allowed ratio.
    """
    low, high = map(math.log, _RATIO)
    for _ in range(_TRIES):
        area = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * draw.random())
        ratio = math.exp(low + (high - low) * draw.random())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int((width - w + 1) * draw.random()), int((height - h + 1) * draw.random())
            return left, top, left + w, top + h
    w = min(width, max(1, round(height * _RATIO[1])))
    h = min(height, max(1, round(width / _RATIO[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def center_box(width: int, height: int, size: int) -> Box:
    """Return the central size × size pixels of the image resized to a shorter side of size · 256/224 pixels.

    The box is in pixels of the original image, so that cropping and resizing are one operation.
    """
    shorter = round(size * _MARGIN)
    w, h = (int(shorter * side / min(width, height)) for side in (width, height))
    left, top = round((w - size) / 2), round((h - size) / 2)
    x, y = width / w, height / h
    return left * x, top * y, (left + size) * x, (top + size) * y


def _decoded_smaller(image: Image, box: Box, size: int) -> Box:
    """Decode a JPEG at 1/2, 1/4 or 1/8, several times faster, where that is fine enough; return the box in it."""
    spare = min(box[2] - box[0], box[3] - box[1]) / (_SPARE * size)
    divisor = max((d for d in (8, 4, 2) if d <= spare), default=1)
    if divisor == 1 or image.draft(None, (image.width // divisor, image.height // divisor)) is None:
        return box
    x0, y0, x1, y1 = (side / divisor for side in box)
    return x0, y0, min(x1, image.width), min(y1, image.height)


def _as_rgb(image: Image) -> Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits of gray, which a plain conversion would make nearly all white
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if image.mode == "P":  # a palette may be transparent in parts
        image = image.convert("RGBA")
    return image.convert("RGB")


def reason(error: Exception) -> str:
    """Return in a few words why an image could not be decoded."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
