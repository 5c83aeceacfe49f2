"""The arguments of a `ModuleTask` and their defaults; an argument of another kind is explained, or accepted if clear.

Legend: a batch x (b, …), y (b,); a loss or a metric is a function of outputs and targets, averaged over the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy.typing as npt
import torch
from torch import nn

from mixwise.data import Dataset, LabelStreams, Partition
from mixwise.errors import DataError, MixwiseError, TrainingError, kind_of
from mixwise.tasks.gradients import Loss

Metric: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | float]

NO_TEST = "there is no test set to evaluate on; give one with test=…"


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The share of samples whose largest output is that of their label."""
    return (outputs.argmax(1) == labels).double().mean()


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean of (output − target)², for outputs and targets of the same shape."""
    if outputs.shape != targets.shape:  # torch would broadcast (b, 1) and (b,) to (b, b)
        shapes = f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)}"
        raise TrainingError(f"{shapes}; they must have the same shape: reshape the targets, or squeeze the outputs")
    return nn.functional.mse_loss(outputs, targets)


def made(module: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Return the module that a function makes; of a module itself, a copy."""
    if isinstance(module, nn.Module):
        original = module
        return made(lambda: copy.deepcopy(original))
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
    for name, value in (*found.named_parameters(), *found.named_buffers()):
        if value.is_complex():  # a conversion to the dtype of the rows would drop the imaginary part
            remedy = "store its two parts as real numbers: torch.view_as_real"
            raise TrainingError(f"{name!r} of the module is {value.dtype}, but rows are real; {remedy}")
    return found


def checked_arguments(
    data: Dataset,
    test: Dataset | None,
    partition: Partition | LabelStreams | Sequence[npt.ArrayLike],
    loss: Loss | None,
    metrics: Mapping[str, Metric] | None,
) -> tuple[Partition | LabelStreams, Loss, dict[str, Metric]]:
    """Return the partition, of which a list of index lists is one, the loss and the metrics, with their defaults."""
    for name, value in (("data", data), ("test", test)):
        if isinstance(value, torch.utils.data.Dataset):
            raise DataError(f"{name} is {kind_of(value)}; convert it: mixwise.data.from_torch({name})")
        if value is not None and not isinstance(value, Dataset):
            raise DataError(f"{name} is {kind_of(value)}; pass mixwise.data.Dataset(x, y, classes)")
    if isinstance(loss, type):
        raise TrainingError(f"loss is {kind_of(loss)}; make one: {loss.__name__}()")
    if loss is not None and not callable(loss):
        example = "torch.nn.functional.mse_loss"
        raise TrainingError(f"loss is {kind_of(loss)}; pass a function of outputs and targets, such as {example}")
    if not isinstance(metrics, Mapping | None):
        raise TrainingError(f"metrics is {kind_of(metrics)}; pass functions by name, such as metrics={{'r2': r2}}")
    if isinstance(partition, list | tuple):
        partition = Partition(tuple(partition))  # it makes arrays of them
    elif not isinstance(partition, Partition | LabelStreams):
        remedy = "such as mixwise.data.partition.by_label(data.y, nodes), or one list of indices per node"
        raise DataError(f"partition is {kind_of(partition)}; pass a partition, {remedy}")
    loss = loss or (nn.functional.cross_entropy if data.classes else squared_error)
    return partition, loss, dict(metrics or ({"accuracy": accuracy} if data.classes else {"test_loss": loss}))


def misfit(module: nn.Module, loss: Loss, classes: int, x: torch.Tensor, y: torch.Tensor) -> str | None:
    """Explain why a module cannot be trained on a batch, as far as its outputs and their loss show."""
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
    try:
        value = loss(found, y)
    except MixwiseError as error:
        return str(error)
    except Exception as error:  # any code of the loss
        reason = str(error).partition("\n")[0].rstrip(".")
        shapes = f"outputs {tuple(found.shape)} and targets {tuple(y.shape)} of {y.dtype}"
        return f"the loss cannot take {shapes}: {reason}; it is called as loss(outputs, targets)"
    if not isinstance(value, torch.Tensor) or value.ndim > 0:
        what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else kind_of(value)
        return f"the loss returns {what}; return its mean over the batch, a tensor without axes"
    if not value.requires_grad:
        return "the loss does not depend on the parameters; compute it from the outputs, without detach() or item()"
    return None
