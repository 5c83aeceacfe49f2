"""The optimizer of a run, and the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mixwise.errors import ConfigError
from mixwise.experiments.config import Optimizer, Schedule
from mixwise.tasks import QuadraticTask, Task
from mixwise.training.optimizers import factor
from mixwise.training.training import OptimizerFactory, SchedulerFactory


def build_optimizer(o: Optimizer, task: Task) -> OptimizerFactory:
    """The optimizer of the rows; with two blocks of columns, the second has no weight decay."""
    options: dict[str, Any] = {"lr": _step_size(o.lr, task), "weight_decay": o.weight_decay}
    if o.kind == "sgd":
        options |= {"momentum": o.momentum, "nesterov": o.nesterov}
    elif o.kind in ("adam", "adamw"):
        options |= {"betas": o.betas, "eps": o.eps}
    elif o.kind == "rmsprop":
        options |= {"momentum": o.momentum, "eps": o.eps}
    if o.nesterov and o.momentum == 0:
        raise ConfigError("optimizer: nesterov needs a momentum above 0")
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
    }

    def make(blocks: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [block]} | ({"weight_decay": 0.0} if i > 0 else {}) for i, block in enumerate(blocks)]
        return kinds[o.kind](groups, **options)

    return make


def build_scheduler(s: Schedule, steps: int) -> SchedulerFactory | None:
    """The schedule of the learning rate, if it is not constant."""
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
