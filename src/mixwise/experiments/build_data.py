"""The data of a run from a configuration: read once, split, and divided over the nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from mixwise import data as datasets
from mixwise.data import Dataset, Partition, Splits, averaged_down, holdout, normalized, partition
from mixwise.errors import ConfigError
from mixwise.experiments.build_model import tokenizer_folder
from mixwise.experiments.config import RunConfig
from mixwise.experiments.task_config import ClassificationConfig, DataConfig, PartitionConfig

_TEXTS = ("ag-news", "hugging-face")


def train_and_test(config: RunConfig, task: ClassificationConfig, seed: int) -> tuple[Dataset, Dataset]:
    """What is trained on, and what the models are judged by."""
    tokenizer = tokenizer_folder(config, task) if task.data.kind in _TEXTS else None
    source = task.data.model_dump_json(), config.data_dir, task.augment, tokenizer
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
def _held_out(
    config_json: str, data_dir: str | None, augment: bool, tokenizer: str | None, seed: int
) -> tuple[Dataset, Dataset]:
    share = DataConfig.model_validate_json(config_json).validation
    return holdout(_splits(config_json, data_dir, augment, tokenizer).train, share, seed)


@lru_cache(maxsize=2)  # variants and seeds share one data set
def _splits(config_json: str, data_dir: str | None, augment: bool, tokenizer: str | None) -> Splits:
    config = DataConfig.model_validate_json(config_json)
    loaders: dict[str, Callable[..., Splits]] = {
        "digits": datasets.digits,
        "gaussian-mixture": datasets.gaussian_mixture,
        "cifar10": lambda **options: datasets.cifar10(data_dir, **options),
        "mnist": lambda **options: datasets.mnist(data_dir, **options),
        "fashion-mnist": lambda **options: datasets.fashion_mnist(data_dir, **options),
        "ag-news": lambda **options: datasets.ag_news(data_dir, **_with_tokenizer(options, tokenizer)),
        "hugging-face": lambda **options: _hugging_face(config, data_dir, augment, tokenizer, options),
        "image-folder": lambda **options: _image_folder(config, data_dir, augment, options),
    }
    try:
        splits = loaders[config.kind](**config.options)
    except TypeError as error:
        raise ConfigError(f"task.data.options = {config.options} do not fit {config.kind}: {error}") from None
    if config.average_down > 1:
        splits = splits.map(lambda part: averaged_down(part, config.average_down))
    if config.test_share < 1:  # the same part for all seeds and variants
        splits = Splits(splits.train, holdout(splits.test, config.test_share, seed=0)[1])
    in_memory = isinstance(splits.train.x, torch.Tensor)
    return normalized(splits) if config.normalize and in_memory else splits


def _with_tokenizer(options: dict[str, Any], tokenizer: str | None) -> dict[str, Any]:
    if tokenizer is None:
        raise ConfigError(
            "texts become tokens of a model; take task.model.kind: text-classifier with a name, "
            "or name a tokenizer with task.data.options.tokenizer"
        )
    return {**options, "tokenizer": tokenizer}


def _hugging_face(
    config: DataConfig, data_dir: str | None, augment: bool, tokenizer: str | None, options: dict[str, Any]
) -> Splits:
    """Texts with the tokenizer of the model, or images."""
    plain = {} if config.normalize else {"mean": None, "std": None}
    told = {**plain, "augment": augment, **options, "tokenizer": tokenizer}
    return datasets.hugging_face(data_dir=data_dir, **told)


def _image_folder(config: DataConfig, data_dir: str | None, augment: bool, options: dict[str, Any]) -> Splits:
    """Images know themselves how they are normalized and changed at random."""
    if data_dir is None:
        raise ConfigError(
            "data_dir is missing: name the folder of your images with data_dir=…; "
            "below it are train/CLASS/*.jpg and val/CLASS/*.jpg"
        )
    plain = {} if config.normalize else {"mean": None, "std": None}
    return datasets.image_folder(data_dir, augment=augment, **{**plain, **options})
