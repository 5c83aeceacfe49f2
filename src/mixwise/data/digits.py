"""Handwritten digits, 8 × 8, that come with scikit-learn (UCI Optical Recognition of Handwritten Digits, test part)."""

from __future__ import annotations

import torch

from mixwise.data.dataset import Dataset, Splits, holdout
from mixwise.parts import part


@part("digits", "data", title="handwritten digits of 8 × 8 pixels")
def digits() -> Splits:
    """Load 1,438 training and 359 test images, float32 (N, 1, 8, 8) in [0, 1]; the random split is always the same."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16).float()[:, None]  # each value counts the dark pixels of a 4 × 4 block
    whole = Dataset(x, torch.from_numpy(bunch.target).long(), 10, "digits")
    return Splits(*holdout(whole, 0.2, seed=0))
