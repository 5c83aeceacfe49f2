"""Small datasets that need no download: handwritten digits of scikit-learn, and points around random centers."""

from __future__ import annotations

import numpy as np
import torch

from mixwise.data.dataset import Dataset, Splits, holdout
from mixwise.errors import DataError
from mixwise.parts import part
from mixwise.seeding import numpy_generator


@part("digits", "data", title="handwritten digits of 8 × 8 pixels")
def digits() -> Splits:
    """Load 1,438 training and 359 test images, float32 (N, 1, 8, 8) in [0, 1]; the random split is always the same.

    They come with scikit-learn (UCI Optical Recognition of Handwritten Digits, test part).
    """
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16).float()[:, None]  # each value counts the dark pixels of a 4 × 4 block
    whole = Dataset(x, torch.from_numpy(bunch.target).long(), 10, "digits")
    return Splits(*holdout(whole, 0.2, seed=0))


@part("gaussian-mixture", "data", title="Gaussian mixture")
def gaussian_mixture(
    classes: int = 10, dim: int = 20, samples: int = 5000, spread: float = 1.0, seed: int = 0
) -> Splits:
    """Draw x = c_y + spread · ε with centers c_k ~ N(0, I) and ε ~ N(0, I), float32 (N, dim); 80 % for training.

    Args:
        classes: the number of centers; all labels are equally frequent, up to one sample.
        dim: the length of x.
        samples: for training and testing together.
        spread: 0 puts every point on its center; two centers are about √(2 dim) apart.
        seed: of the centers, the points and the split.
    """
    if classes < 1 or dim < 1 or samples < max(classes, 2) or not 0 <= spread < np.inf:
        found = f"classes = {classes}, dim = {dim}, samples = {samples}, spread = {spread}"
        raise DataError(f"{found}; use at least 1 class, 1 dimension, 2 samples, a sample per class, and spread ≥ 0")
    stream = numpy_generator(seed, "gaussian mixture")
    centers = stream.standard_normal((classes, dim))
    y = np.arange(samples) % classes
    x = centers[y] + spread * stream.standard_normal((samples, dim))
    whole = Dataset(torch.from_numpy(x).float(), torch.from_numpy(y).long(), classes, "gaussian mixture")
    return Splits(*holdout(whole, 0.2, seed))
