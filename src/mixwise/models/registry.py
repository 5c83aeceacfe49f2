"""Models by name: the one place where the words of a recipe become modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from torch import nn

from mixwise.errors import ConfigError
from mixwise.models.factory import seeded
from mixwise.models.hugging_face import image_classifier, text_classifier
from mixwise.models.mlp import logistic_regression, mlp
from mixwise.models.resnet import resnet18, resnet20
from mixwise.models.small_cnn import small_cnn

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "small-cnn": small_cnn,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "mlp": mlp,
    "logistic": logistic_regression,
    "text-classifier": text_classifier,
    "image-classifier": image_classifier,
}


def build(name: str, /, *, seed: int, **options: Any) -> nn.Module:
    """The model called `name`, with parameters that depend on the seed and on nothing else.

    Args:
        name: a key of `MODELS`.
        seed: of the initial parameters.
        options: arguments of the model's factory.

    >>> build("logistic", seed=0, features=64, classes=10)[-1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    if name not in MODELS:
        raise ConfigError(f"model = {name!r}; choose one of {', '.join(MODELS)}")
    factory = MODELS[name]
    known = signature(factory).parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"model {name!r} has no option {option!r}; its options are {', '.join(known)}")
    for option, parameter in known.items():
        if parameter.default is Parameter.empty and option not in options:
            raise ConfigError(f"model {name!r} needs {option}; its options are {', '.join(known)}")
    return seeded(lambda: factory(**options), seed)
