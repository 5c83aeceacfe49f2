"""The data of a run from a configuration: read once, split, and divided over the nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mixwise import data as datasets
from mixwise.data import Dataset, Partition, Splits, averaged_down, holdout, normalized, partition
from mixwise.errors import ConfigError
from mixwise.experiments.config import RunConfig
from mixwise.experiments.task_config import ClassificationConfig, DataConfig, PartitionConfig


def train_and_test(config: RunConfig, task: ClassificationConfig, seed: int) -> tuple[Dataset, Dataset]:
    """What is trained on, and what the models are judged by."""
    source = task.data.model_dump_json(), config.data_dir
    splits = _splits(*source)
    if task.data.validation > 0:
        train, validation = _held_out(*source, seed)
        return train, validation if task.evaluate_on == "validation" else splits.test
    if task.evaluate_on == "validation":
        raise ConfigError("task.evaluate_on = 'validation' needs task.data.validation, the share that is held out")
    return splits.train, splits.test


def divided(data: Dataset, config: PartitionConfig, nodes: int, seed: int) -> Partition:
    """Which node holds which samples."""
    if config.kind == "dirichlet":
        return partition.dirichlet(data.y, nodes, config.alpha, seed)
    if config.kind == "by-label":
        return partition.by_label(data.y, nodes, config.labels_per_node, seed)
    return partition.iid(len(data), nodes, seed)


@lru_cache(maxsize=1)  # the variants of a seed share them
def _held_out(config_json: str, data_dir: str | None, seed: int) -> tuple[Dataset, Dataset]:
    share = DataConfig.model_validate_json(config_json).validation
    return holdout(_splits(config_json, data_dir).train, share, seed)


@lru_cache(maxsize=2)  # variants and seeds share one data set
def _splits(config_json: str, data_dir: str | None) -> Splits:
    config = DataConfig.model_validate_json(config_json)
    loaders: dict[str, Callable[..., Splits]] = {
        "digits": datasets.digits,
        "gaussian-mixture": datasets.gaussian_mixture,
        "cifar10": lambda **options: datasets.cifar10(data_dir, **options),
        "mnist": lambda **options: datasets.mnist(data_dir, **options),
        "fashion-mnist": lambda **options: datasets.fashion_mnist(data_dir, **options),
    }
    try:
        splits = loaders[config.kind](**config.options)
    except TypeError as error:
        raise ConfigError(f"task.data.options = {config.options} do not fit {config.kind}: {error}") from None
    if config.average_down > 1:
        splits = splits.map(lambda part: averaged_down(part, config.average_down))
    return normalized(splits) if config.normalize else splits
