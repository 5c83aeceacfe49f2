"""The model of a run from a configuration: built or loaded, frozen in part; features of the data in its place."""

from __future__ import annotations

from typing import Any

from torch import nn

from mixwise import models
from mixwise.data import Dataset, TokenSamples
from mixwise.data.hub_files import model_folder
from mixwise.errors import ConfigError
from mixwise.experiments.config import RunConfig
from mixwise.experiments.task_config import ClassificationConfig
from mixwise.models.features import entry_of
from mixwise.seeding import stream

PRETRAINED = ("text-classifier", "image-classifier")


def build_model(config: RunConfig, task: ClassificationConfig, classes: int, seed: int) -> nn.Module:
    """The module that every node starts with."""
    options: dict[str, Any] = {"classes": classes} if task.model.kind != "mlp" else {}
    options |= task.model.options
    if task.model.kind in PRETRAINED:
        options = {"model_dir": config.model_dir, "data_dir": config.data_dir, **options}
    elif config.model_dir is not None:
        raise ConfigError(f"model_dir is for pretrained models ({', '.join(PRETRAINED)}), not for {task.model.kind}")
    module = models.build(task.model.kind, seed=stream(seed, "model"), **options)
    try:
        return models.freeze(module, task.train)
    except ConfigError as error:
        raise ConfigError(f"task.{error}") from None


def tokenizer_folder(config: RunConfig, task: ClassificationConfig) -> str | None:
    """The folder of the tokenizer for texts: that of the model, unless the data name another one."""
    named = task.data.options.get("tokenizer")
    if named is not None:
        return str(model_folder(str(named), None, config.data_dir))
    if task.model.kind != "text-classifier" or "name" not in task.model.options:
        return None
    name, own = str(task.model.options["name"]), task.model.options.get("model_dir", config.model_dir)
    return str(model_folder(name, own, config.data_dir))


def cached(task: ClassificationConfig, module: nn.Module, *parts: Dataset) -> tuple[Dataset, ...]:
    """The data as features of the frozen part of the model; as they are, if that is not possible or not wanted."""
    if task.cache_features is False:
        return parts
    reason = _no_features(module, parts)
    if reason is not None:
        if task.cache_features is None:
            return parts
        raise ConfigError(f"task.cache_features = {task.cache_features!r}: {reason}; leave it out")
    precision = task.cache_features if isinstance(task.cache_features, str) else "float16"
    assert isinstance(module, models.TextClassifier)
    return tuple(models.with_features(part, module, precision) for part in parts)


def _no_features(module: nn.Module, parts: tuple[Dataset, ...]) -> str | None:
    """Why there are no features to be kept."""
    if not isinstance(module, models.TextClassifier) or not all(isinstance(part.x, TokenSamples) for part in parts):
        return "only features of texts in a text-classifier are kept"
    if entry_of(module) is None:
        return "nothing is frozen below what is trained (task.train: head, or a number of blocks)"
    return None


def check_tokens(module: nn.Module, data: Dataset) -> None:
    """See that a model reads the tokens that the data hold."""
    if not isinstance(data.x, TokenSamples):
        return
    if not isinstance(module, models.TextClassifier):
        raise ConfigError(f"{data.name} holds {data.kind}; take a model of kind text-classifier for it")
    if data.x.pad != module.pad:
        raise ConfigError(
            f"{data.name} is padded with token {data.x.pad}, the model expects {module.pad}; "
            f"take the tokenizer of the model"
        )
    model: Any = module.model
    highest, words = int(data.x.rows.values.max()), model.get_input_embeddings().weight.shape[0]
    if highest >= words:
        raise ConfigError(
            f"{data.name} has a token {highest}, the model knows {words}; take the tokenizer of the model"
        )
    longest = getattr(model.config, "max_position_embeddings", data.x.max_length)
    if data.x.max_length > longest:
        raise ConfigError(
            f"max_length = {data.x.max_length}; the model has {longest} positions: "
            f"set task.data.options.max_length={longest} or less"
        )
