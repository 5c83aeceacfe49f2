"""Fully connected networks for samples of any shape, which are flattened first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from mixwise.errors import ConfigError
from mixwise.models.factory import Expect, checked_size
from mixwise.parts import part


@part("mlp", "model", title="multilayer perceptron")
def mlp(sizes: Sequence[int] = (784, 128, 10)) -> nn.Sequential:
    """Linear layers between the given sizes, with ReLU between the layers.

    Args:
        sizes: features of a sample, units of each hidden layer, classes.

    >>> [layer.out_features for layer in mlp((784, 128, 10)) if isinstance(layer, nn.Linear)]
    [128, 10]
    """
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) < 2:
        raise ConfigError(f"sizes = {sizes!r}; give two or more integers: features, hidden units …, classes")
    sizes = [checked_size(f"sizes[{i}]", size) for i, size in enumerate(sizes)]
    first, *rest = (nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))
    hidden = (layer for linear in rest for layer in (nn.ReLU(), linear))
    return nn.Sequential(nn.Flatten(), Expect(sizes[0]), first, *hidden)


@part("logistic", "model", title="logistic regression")
def logistic_regression(features: int, classes: int) -> nn.Sequential:
    """One linear layer: with the cross-entropy loss, a convex problem.

    Args:
        features: the size of a sample, the product of all its dimensions.
        classes: the number of logits.
    """
    return mlp((checked_size("features", features), checked_size("classes", classes)))
