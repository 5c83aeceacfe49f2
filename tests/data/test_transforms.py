"""Flips and crops equal a loop over single images; downsampled and normalized datasets have the stated moments."""

import pytest
import torch

from builders import refused
from mixwise.data import Dataset, FlipsAndCrops, Splits, averaged_down, normalized, random_crops, random_flips
from mixwise.errors import DataError
from mixwise.seeding import generator

DTYPES = [torch.uint8, torch.float32, torch.float64]


def images(B: int = 40, C: int = 3, H: int = 6, W: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, B * C * H * W + 1).reshape(B, C, H, W).remainder(251).to(dtype)


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
    corner = torch.randint(2 * padding + 1, (2, len(x)), generator=generator(0, "crops"))
    for before, after, top, left in zip(x, result, *corner.tolist(), strict=True):
        padded = torch.nn.functional.pad(before, (padding,) * 4)
        assert torch.equal(after, padded[:, top : top + 6, left : left + 5])
    assert result.dtype == dtype


def test_both_together_depend_on_the_generator_alone_and_leave_the_input():
    x = images()
    kept, augment = x.clone(), FlipsAndCrops(padding=2)
    first = augment(x, generator(0, "augment", 3, 7))
    stream = generator(0, "augment", 3, 7)
    assert torch.equal(first, random_crops(random_flips(x, stream), 2, stream))
    assert not torch.equal(first, augment(x, generator(0, "augment", 3, 8)))
    assert torch.equal(x, kept)
    assert augment(x[:0], generator(0)).shape == x[:0].shape
    elsewhere = x.to("meta")  # a device with shapes only: draws must have been moved there
    assert augment(elsewhere, generator(0)).shape == x.shape


def test_other_inputs_than_images_are_rejected():
    refused(DataError, r"shape \(3, 4, 4\); .* \(B, C, H, W\)", random_flips, torch.zeros(3, 4, 4), generator(0))
    refused(DataError, "padding = -1; it must be 0 or more", random_crops, images(), -1, generator(0))


# --- of whole datasets ---


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_averaging_down_equals_pooling(dtype):
    x = torch.randint(0, 256, (300, 3, 6, 9), generator=torch.Generator().manual_seed(0)).to(dtype)
    small_x = averaged_down(Dataset(x, torch.zeros(300).long(), 1), 3).x
    scale = 255 if dtype == torch.uint8 else 1
    wanted = torch.nn.functional.avg_pool2d(x.double() / scale, 3)
    assert small_x.dtype == torch.float32
    assert torch.allclose(small_x.double(), wanted, rtol=1e-6, atol=0)  # nine float32 additions


@pytest.mark.parametrize("shape", [(700, 3, 4, 4), (700, 5)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalized_training_data_have_mean_0_and_variance_1(shape, dtype):
    x = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[:, 1] = 7  # never varies
    train = Dataset(x, torch.zeros(len(x)).long(), 1)
    splits = normalized(Splits(train, train.subset([5, 3])))
    axes, y = [0, *range(2, len(shape))], splits.train.x.double()
    assert splits.train.x.dtype == torch.float32
    assert y.mean(axes).abs().max() < 1e-6  # float32 rounding of numbers around 1
    assert torch.allclose(y.var(axes, correction=0)[[0, 2]], torch.ones(2, dtype=torch.float64), rtol=1e-5)
    assert splits.train.x[:, 1].abs().max() == 0
    assert torch.equal(splits.test.x, splits.train.x[[5, 3]])
