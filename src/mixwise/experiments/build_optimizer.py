"""The optimizer of a run, and the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from mixwise.errors import ConfigError
from mixwise.experiments.config import Optimizer, Schedule
from mixwise.tasks import QuadraticTask, Task
from mixwise.training.optimizers import factor
from mixwise.training.training import OptimizerFactory, SchedulerFactory

_OPTIMIZERS: Mapping[str, tuple[Callable[..., torch.optim.Optimizer], set[str]]] = {  # with the options that each has
    "sgd": (torch.optim.SGD, {"momentum", "nesterov"}),
    "adam": (torch.optim.Adam, {"betas", "eps"}),
    "adamw": (torch.optim.AdamW, {"betas", "eps"}),
    "rmsprop": (torch.optim.RMSprop, {"momentum", "eps"}),
    "adagrad": (torch.optim.Adagrad, set()),
}


def build_optimizer(o: Optimizer, task: Task) -> OptimizerFactory:
    """Return a factory of the optimizer; of two blocks of columns, the second has no weight decay."""
    if o.nesterov and o.momentum == 0:
        raise ConfigError("optimizer: nesterov needs a momentum above 0")
    kind, further = _OPTIMIZERS[o.kind]
    options = {"lr": _step_size(o.lr, task), "weight_decay": o.weight_decay, **o.model_dump(include=further)}

    def make(blocks: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [block]} | ({"weight_decay": 0.0} if i > 0 else {}) for i, block in enumerate(blocks)]
        return kind(groups, **options)

    return make


def build_scheduler(s: Schedule, steps: int) -> SchedulerFactory | None:
    """Return a factory of the learning rate's schedule, or None if the rate is constant."""
    if s.warmup == 0 and not s.decay_at and not s.cosine:
        return None
    at = factor(steps, **s.model_dump())
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, at)


def _step_size(lr: float | str, task: Task) -> float:
    if not isinstance(lr, str):
        return lr
    if not isinstance(task, QuadraticTask):
        raise ConfigError(f"optimizer.lr = {lr!r} needs a task whose smoothness L is known; give a number")
    return float(lr.removesuffix("/L")) / task.smoothness  # checked: a number, then /L
