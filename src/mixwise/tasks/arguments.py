"""The arguments of a `ModuleTask`: values of another kind are explained, and those that are unambiguous accepted.

Legend: a batch x (b, …), y (b,).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy.typing as npt
import torch
from torch import nn

from mixwise.data import Dataset, LabelStreams, Partition
from mixwise.errors import DataError, TrainingError, kind_of

NO_TEST = "there is no test set to evaluate on; give one with test=…"


def made(module: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Return the module that a function makes; of a module itself, a copy."""
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    example = "module=lambda: nn.Linear(64, 10)"
    if not callable(module):
        raise TrainingError(f"module is {kind_of(module)}; pass an nn.Module or a function that makes one: {example}")
    try:
        found = module()
    except TypeError as error:
        if isinstance(module, type):  # nn.Linear, which needs arguments
            raise TrainingError(f"module is {kind_of(module)}, {error}; pass a function: {example}") from None
        raise
    if not isinstance(found, nn.Module):
        raise TrainingError(f"module() returned {kind_of(found)}; it must return an nn.Module")
    return found


def as_partition(value: Partition | LabelStreams | Sequence[npt.ArrayLike]) -> Partition | LabelStreams:
    """Return a partition; a list of index lists is one."""
    if isinstance(value, Partition | LabelStreams):
        return value
    if isinstance(value, list | tuple):
        return Partition(tuple(value))  # it makes arrays of them
    remedy = "such as mixwise.data.partition.by_label(data.y, nodes), or one list of indices per node"
    raise DataError(f"partition is {kind_of(value)}; pass a partition, {remedy}")


def check_data(data: Dataset, test: Dataset | None, loss: object) -> None:
    """Reject data of another kind, and a loss class in the place of a loss."""
    for name, value in (("data", data), ("test", test)):
        if isinstance(value, torch.utils.data.Dataset):
            raise DataError(f"{name} is {kind_of(value)}; convert it: mixwise.data.from_torch({name})")
        if value is not None and not isinstance(value, Dataset):
            raise DataError(f"{name} is {kind_of(value)}; pass mixwise.data.Dataset(x, y, classes)")
    if isinstance(loss, type):
        raise TrainingError(f"loss is {kind_of(loss)}; make one: {loss.__name__}()")


def misfit(module: nn.Module, loss: object, classes: int, x: torch.Tensor, y: torch.Tensor) -> str | None:
    """Explain why a module cannot be trained on a batch, as far as the shapes of its outputs show."""
    try:
        found = copy.deepcopy(module)(x)
    except Exception as error:  # any code of the module
        reason = str(error).partition("\n")[0].rstrip(".")
        shape = f"of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else "with several inputs"
        return f"the module cannot take a batch {shape}: {reason}; fit the module to its inputs"
    if not isinstance(found, torch.Tensor):
        return f"the module returns {kind_of(found)}; return one tensor, such as found[0] or found.logits"
    if loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        given, expected = tuple(found.shape), (len(y), classes)
        if len(given) < 2 or given[0] != len(y) or given[1] < classes:
            rule = f"cross-entropy with labels 0 to {classes - 1} needs {expected}"
            return f"the module returns {given} for a batch of {len(y)}; {rule}: give its last layer {classes} outputs"
    return None
