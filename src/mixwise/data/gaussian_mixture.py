"""Points around random centers: a classification problem whose difficulty is one number."""

from __future__ import annotations

import numpy as np
import torch

from mixwise.data.dataset import Dataset, Splits, holdout
from mixwise.errors import DataError
from mixwise.parts import part
from mixwise.seeding import numpy_generator


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
        raise DataError(
            f"classes = {classes}, dim = {dim}, samples = {samples}, spread = {spread}; there must be at least one "
            f"class, one dimension, a sample per class (and two in all), and a finite spread of 0 or more"
        )
    stream = numpy_generator(seed, "gaussian mixture")
    centers = stream.standard_normal((classes, dim))
    y = np.arange(samples) % classes
    x = centers[y] + spread * stream.standard_normal((samples, dim))
    whole = Dataset(torch.from_numpy(x).float(), torch.from_numpy(y).long(), classes, "gaussian mixture")
    return Splits(*holdout(whole, 0.2, seed))
