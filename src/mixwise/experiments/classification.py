"""The task `classification`: a model trained on a data set that is divided over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import Parameter
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import nn

from mixwise import models
from mixwise.data import (
    Dataset,
    FlipsAndCrops,
    LabelStreams,
    Partition,
    Splits,
    TokenSamples,
    averaged_down,
    holdout,
    normalized,
)
from mixwise.data.files import model_folder
from mixwise.data.partition import dirichlet
from mixwise.errors import ConfigError
from mixwise.experiments.config import RunConfig, Strict
from mixwise.experiments.memory import check_module
from mixwise.models.features import entry_of
from mixwise.parts import FAMILIES, Bound, Count, OptionError, Share, Unit, declaration, entries, lookup, part, supply
from mixwise.seeding import stream
from mixwise.tasks import ModuleTask

_DIRICHLET = Bound(declaration(dirichlet), {})
_LARGE_BATCH = 4096  # samples; a batch up to this may be larger than a small data set
PRETRAINED = ("text-classifier", "image-classifier")
_NEEDED = {  # arguments of some data sets that a run may lack
    "data_dir": "data_dir is missing: name the folder of your images with data_dir=…; "
    "below it are train/CLASS/*.jpg and val/CLASS/*.jpg",
    "tokenizer": "texts become tokens of a model; take task.model.kind: text-classifier with a name, "
    "or name a tokenizer with task.data.options.tokenizer",
}


class _Named(Strict):
    """A part by name, with its options in a section of their own."""

    family: ClassVar[str]
    kind: str
    """Name of the part."""
    options: dict[str, Any] = {}
    """Its options, listed below."""

    @model_validator(mode="after")
    def _fits(self) -> _Named:
        self.bound()
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The arguments of the part that `kind` names, with their defaults."""
        return lookup(self.family, self.kind).defaults

    def bound(self, **changes: Any) -> Callable[..., Any]:
        """The part with its options, some of them changed."""
        declared = lookup(self.family, self.kind)
        try:
            made: Callable[..., Any] = declared.build({**self.options, **changes})
        except OptionError as error:
            raise error.at("options") from None
        return made


class DataSection(_Named):
    """A data set, and what is done to it once."""

    family: ClassVar[str] = "data"
    average_down: Count = 1
    """Average blocks of this many pixels in each direction."""
    normalize: bool = True
    """Whether inputs are standardized."""
    validation: Unit = 0.0
    """Share of the training samples that is held out for `evaluate_on: validation`."""
    test_share: Share = 1.0
    """Share of the test samples that is used."""


class ModelSection(_Named):
    """A model by name, with the options of its factory."""

    family: ClassVar[str] = "model"


@part("classification", "task", title="a model that classifies samples")
def classification(
    nodes: int,
    seed: int,
    run: RunConfig,
    *,
    data: DataSection,
    model: ModelSection,
    partition: Annotated[Callable[..., Partition | LabelStreams], FAMILIES["partition"]] = _DIRICHLET,
    batch: Count = 32,
    augment: bool = False,
    gradients: Literal["auto", "measure", "loop", "stacked"] = "auto",
    accumulate: Count = 1,
    autocast: Literal["bfloat16", "float16"] | None = None,
    compile: bool = False,
    buffers: Literal["local", "averaged"] = "local",
    evaluate_on: Literal["test", "validation"] = "test",
    interim_samples: Count | None = None,
    train: Literal["all", "head"] | Count = "all",
    cache_features: bool | Literal["float16", "float32"] | None = None,
) -> ModuleTask:
    """A model trained to classify a data set that is divided over the nodes.

    Args:
        nodes, seed, run: of the run.
        data, model, partition: which data set, which model, and how the samples are divided.
        batch: samples per node and step.
        augment: whether training sees random flips and crops.
        gradients: node by node (loop), all nodes at once (stacked, faster for small dense models), whichever is faster
            here (measure), or chosen by the model (auto).
        accumulate: how many pieces a batch is cut into; less memory, the same gradients.
        autocast: the compute precision of matrix products.
        compile: whether the passes go through torch.compile, which pays for convolutions and needs a C++ compiler.
        buffers: whether BatchNorm statistics and other buffers are local or averaged like the parameters.
        evaluate_on: the test set, or the part of the training set that `data.validation` holds out.
        interim_samples: how many of its samples are used by evaluations before the last one; by default all.
        train: all of the model, its head, or its head and a number of its last blocks.
        cache_features: whether features of the frozen part replace the data, and in which precision; by default where
            that is possible.
    """
    tokenizer = tokenizer_folder(run, data, model) if "tokenizer" in data.defaults else None
    training, test = _train_and_test(data, run.data_dir, augment, tokenizer, evaluate_on, seed)
    module = build_model(run, model, training.classes, seed, train, training.x)
    _check_tokens(module, training)
    if batch > max(len(training), _LARGE_BATCH):
        raise ConfigError(f"task.batch = {batch} is more than all {len(training)} training samples; use a smaller one")
    training, test = _cached(cache_features, module, training, test)
    divided = supply(partition, labels=training.y, samples=len(training), nodes=nodes, seed=seed)
    changed = None  # samples that are read when they are needed change themselves
    if augment and isinstance(training.x, torch.Tensor):
        changed = FlipsAndCrops(max(1, training.x.shape[-1] // 8))
    return ModuleTask(
        lambda: module,
        training,
        divided,
        batch=batch,
        test=test,
        interim_samples=interim_samples,
        augment=changed,
        gradients=gradients,
        buffers=buffers,
        group_of=lambda name, parameter: 0 if run.optimizer.decay_norms_and_biases else int(parameter.ndim < 2),
        device=run.device,
        dtype=getattr(torch, run.dtype),
        accumulate=accumulate,
        compile=compile,
        autocast=None if autocast is None else getattr(torch, autocast),
        seed=seed,
    )


# --- data: read once, split, and divided over the nodes ---
@lru_cache(maxsize=1)  # the variants of a seed share them
def _train_and_test(
    data: DataSection, data_dir: str | None, augment: bool, tokenizer: str | None, evaluate_on: str, seed: int
) -> tuple[Dataset, Dataset]:
    """The training set, and the one that the models are evaluated on."""
    splits = _splits(data, data_dir, augment, tokenizer)
    if data.validation > 0:
        train, validation = holdout(splits.train, data.validation, seed)
        return train, validation if evaluate_on == "validation" else splits.test
    if evaluate_on == "validation":
        raise ConfigError("task.evaluate_on = 'validation' needs task.data.validation, the share that is held out")
    return splits.train, splits.test


@lru_cache(maxsize=2)  # variants and seeds share one data set
def _splits(data: DataSection, data_dir: str | None, augment: bool, tokenizer: str | None) -> Splits:
    for name, value in (("data_dir", data_dir), ("tokenizer", tokenizer)):
        if value is None and data.defaults.get(name) is Parameter.empty:
            raise ConfigError(_NEEDED[name])
    available: dict[str, Any] = {"data_dir": data_dir, "augment": augment}
    if not data.normalize:
        available |= {"mean": None, "std": None}
    splits: Splits = supply(data.bound(**({} if tokenizer is None else {"tokenizer": tokenizer})), **available)
    if data.average_down > 1:
        splits = splits.map(lambda each: averaged_down(each, data.average_down))
    if data.test_share < 1:  # the same part for all seeds and variants
        splits = Splits(splits.train, holdout(splits.test, data.test_share, seed=0)[1])
    in_memory = isinstance(splits.train.x, torch.Tensor)
    return normalized(splits) if data.normalize and in_memory else splits


# --- the model: built or loaded, frozen in part; features of the data in its place ---
def build_model(
    run: RunConfig, model: ModelSection, classes: int, seed: int, train: Any = "all", x: torch.Tensor | Any = None
) -> nn.Module:
    """The module that every node starts with; where options do not say otherwise, for samples like x."""
    if run.model_dir is not None and "model_dir" not in model.defaults:
        raise ConfigError(f"model_dir is for pretrained models ({', '.join(PRETRAINED)}), not for {model.kind}")
    available = {"classes": classes, "model_dir": run.model_dir, "data_dir": run.data_dir}
    if isinstance(x, torch.Tensor):
        available["features"] = x[0].numel()
        if x.ndim == 4:
            available |= dict(zip(("channels", "image_height", "image_width"), x.shape[1:], strict=True))
    if model.kind in entries("model", outside=False) and model.kind not in PRETRAINED:
        check_module(lambda: supply(model.bound(), **available))
    module: nn.Module = models.seeded(lambda: supply(model.bound(), **available), stream(seed, "model"))
    try:
        return models.freeze(module, train)
    except ConfigError as error:
        raise ConfigError(f"task.{error}") from None


def tokenizer_folder(run: RunConfig, data: DataSection, model: ModelSection) -> str | None:
    """The folder of the tokenizer for texts: that of the model, unless the data name another one."""
    named = data.options.get("tokenizer")
    if named is not None:
        return str(model_folder(str(named), None, run.data_dir))
    if model.kind != "text-classifier" or "name" not in model.options:
        return None
    name, own = str(model.options["name"]), model.options.get("model_dir", run.model_dir)
    return str(model_folder(name, own, run.data_dir))


def _cached(wanted: bool | str | None, module: nn.Module, *parts: Dataset) -> tuple[Dataset, ...]:
    """The data as features of the frozen part of the model; as they are, if that is not possible or not wanted."""
    if wanted is False:
        return parts
    if not isinstance(module, models.TextClassifier) or not all(isinstance(each.x, TokenSamples) for each in parts):
        reason = "only features of texts in a text-classifier are kept"
    elif entry_of(module) is None:
        reason = "nothing is frozen below what is trained (task.train: head, or a number of blocks)"
    else:
        precision: Literal["float16", "float32"] = "float32" if wanted == "float32" else "float16"
        return tuple(models.with_features(each, module, precision) for each in parts)
    if wanted is None:
        return parts
    raise ConfigError(f"task.cache_features = {wanted!r}: {reason}; leave it out")


def _check_tokens(module: nn.Module, data: Dataset) -> None:
    """Refuse tokens that the model cannot read."""
    if not isinstance(data.x, TokenSamples):
        return
    if not isinstance(module, models.TextClassifier):
        raise ConfigError(f"{data.name} holds {data.kind}; take a model of kind text-classifier for it")
    remedy = "take the tokenizer of the model"
    if data.x.pad != module.pad:
        raise ConfigError(f"{data.name} is padded with token {data.x.pad}, the model expects {module.pad}; {remedy}")
    model: Any = module.model
    highest, words = int(data.x.rows.values.max()), model.get_input_embeddings().weight.shape[0]
    if highest >= words:
        raise ConfigError(f"{data.name} has a token {highest}, the model knows {words}; {remedy}")
    length, longest = data.x.max_length, getattr(model.config, "max_position_embeddings", data.x.max_length)
    if length > longest:
        remedy = f"set task.data.options.max_length={longest} or less"
        raise ConfigError(f"max_length = {length}; the model has {longest} positions: {remedy}")
