"""Flips and crops equal a loop over single images, image by image."""

import pytest
import torch

from mixwise.data import FlipsAndCrops, random_crops, random_flips
from mixwise.errors import DataError
from mixwise.seeding import generator

DTYPES = [torch.uint8, torch.float32, torch.float64]


def images(B: int = 40, C: int = 3, H: int = 6, W: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, B * C * H * W + 1).reshape(B, C, H, W).remainder(251).to(dtype)


def shifted(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """image (C, H, W) with out[:, i, j] = image[:, i + down, j + right], zero outside."""
    out = torch.zeros_like(image)
    _, H, W = image.shape
    for i in range(H):
        for j in range(W):
            if 0 <= i + down < H and 0 <= j + right < W:
                out[:, i, j] = image[:, i + down, j + right]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_flips_equal_a_loop(dtype):
    x = images(dtype=dtype)
    result = random_flips(x, generator(0, "flips"))
    flip = torch.rand(len(x), generator=generator(0, "flips")) < 0.5
    assert 0 < int(flip.sum()) < len(x)
    for before, after, mirrored in zip(x, result, flip, strict=True):
        assert torch.equal(after, torch.stack([row.flip(-1) for row in before]) if mirrored else before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crops_equal_a_loop(dtype, padding):
    x = images(dtype=dtype)
    result = random_crops(x, padding, generator(0, "crops"))
    corner = torch.randint(2 * padding + 1, (2, len(x)), generator=generator(0, "crops")) - padding
    for before, after, down, right in zip(x, result, *corner.tolist(), strict=True):
        assert torch.equal(after, shifted(before, down, right))
    assert result.dtype == dtype


def test_every_shift_and_both_sides_occur_equally_often():
    """Counts of uniform draws lie within 5 standard deviations of their mean."""
    B, padding = 9000, 1
    x = torch.zeros(B, 1, 3, 3)
    x[:, 0, 1, 1] = 1  # the dot goes wherever the shift takes it
    where = random_crops(x, padding, generator(1, "crops")).flatten(1).argmax(1)
    counts = torch.bincount(where, minlength=9).double()
    assert (counts - B / 9).abs().max() < 5 * (B / 9 * 8 / 9) ** 0.5
    flipped = (random_flips(images(B), generator(1, "flips")) != images(B)).flatten(1).any(1).sum()
    assert abs(int(flipped) - B / 2) < 5 * (B / 4) ** 0.5


def test_both_together_depend_on_the_generator_alone_and_leave_the_input():
    x = images()
    kept = x.clone()
    augment = FlipsAndCrops(padding=2)
    first = augment(x, generator(0, "augment", 3, 7))
    stream = generator(0, "augment", 3, 7)
    assert torch.equal(first, random_crops(random_flips(x, stream), 2, stream))
    assert not torch.equal(first, augment(x, generator(0, "augment", 3, 8)))
    assert torch.equal(x, kept)
    assert augment(x[:0], generator(0)).shape == x[:0].shape


def test_draws_on_the_cpu_serve_images_elsewhere():
    x = images().to("meta")  # a device with shapes only: what is mixed with it must have been moved there
    assert FlipsAndCrops(padding=2)(x, generator(0)).shape == x.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_flips(torch.zeros(3, 4, 4), generator(0)), r"shape \(3, 4, 4\); .* \(B, C, H, W\)"),
        (lambda: random_crops(torch.zeros(3, 4), 1, generator(0)), r"shape \(3, 4\)"),
        (lambda: random_crops(images(), -1, generator(0)), "padding = -1; it must be 0 or more"),
    ],
)
def test_what_are_not_images_is_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
