"""Tasks, optimizers and schedules from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mixwise.data import Dataset, FlipsAndCrops
from mixwise.errors import ConfigError
from mixwise.experiments.build_data import divided, train_and_test
from mixwise.experiments.build_model import build_model, cached, check_tokens
from mixwise.experiments.config import RunConfig
from mixwise.experiments.task_config import ClassificationConfig
from mixwise.tasks import ModuleTask, QuadraticTask, random_quadratics, two_class_quadratics
from mixwise.training.optimizers import factor
from mixwise.training.training import OptimizerFactory, SchedulerFactory


def build_task(config: RunConfig, nodes: int, seed: int) -> QuadraticTask | ModuleTask:
    """The task of a run over this many nodes."""
    if isinstance(config.task, ClassificationConfig):
        return _classification(config, config.task, nodes, seed)
    make = {"random": random_quadratics, "two": two_class_quadratics}[config.task.classes]
    return make(nodes, config.task.dim, config.task.noise, seed)


def run_length(config: RunConfig, task: QuadraticTask | ModuleTask) -> int:
    """Steps of a run; an epoch is as many steps as an average node needs to see its data once."""
    if config.steps is not None:
        return config.steps
    assert config.epochs is not None
    assert isinstance(task, ModuleTask)
    return max(1, round(config.epochs * len(task.data) / (task.nodes * task.batch)))


def build_optimizer(config: RunConfig, task: QuadraticTask | ModuleTask) -> OptimizerFactory:
    """The optimizer of the rows; with two blocks of columns, the second has no weight decay."""
    o, lr = config.optimizer, _step_size(config, task)
    options: dict[str, Any] = {"lr": lr, "weight_decay": o.weight_decay}
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


def build_scheduler(config: RunConfig, steps: int) -> SchedulerFactory | None:
    """The schedule of the learning rate, if it is not constant."""
    s = config.schedule
    if s.warmup == 0 and not s.decay_at and not s.cosine:
        return None
    at = factor(steps, **s.model_dump())
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, at)


def _augment(data: Dataset) -> FlipsAndCrops | None:
    """The random changes of images in memory; samples that are read when they are needed know their own."""
    return FlipsAndCrops(max(1, data.x.shape[-1] // 8)) if isinstance(data.x, torch.Tensor) else None


def _step_size(config: RunConfig, task: QuadraticTask | ModuleTask) -> float:
    lr = config.optimizer.lr
    if not isinstance(lr, str):
        return lr
    if not isinstance(task, QuadraticTask):
        raise ConfigError(f"optimizer.lr = {lr!r} needs a task whose smoothness L is known; give a number")
    return float(lr.removesuffix("/L")) / task.smoothness  # checked: a number, then /L


def _classification(config: RunConfig, task: ClassificationConfig, nodes: int, seed: int) -> ModuleTask:
    train, test = train_and_test(config, task, seed)
    module = build_model(config, task, train.classes, seed)
    check_tokens(module, train)
    train, test = cached(task, module, train, test)
    return ModuleTask(
        lambda: module,
        train,
        divided(train, task.partition, nodes, seed),
        batch=task.batch,
        test=test,
        augment=_augment(train) if task.augment else None,
        gradients=task.gradients,
        buffers=task.buffers,
        group_of=lambda name, parameter: 0 if config.optimizer.decay_norms_and_biases else int(parameter.ndim < 2),
        device=config.device,
        dtype=getattr(torch, config.dtype),
        accumulate=task.accumulate,
        autocast=None if task.autocast is None else getattr(torch, task.autocast),
        seed=seed,
    )
