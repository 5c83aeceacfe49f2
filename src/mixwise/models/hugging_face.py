"""Pretrained classifiers of Hugging Face as plain modules: one tensor in, logits out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from mixwise.data.files import Folder, loading, model_folder, optional
from mixwise.data.tokens import has_tokenizer, load_tokenizer
from mixwise.errors import ConfigError, DataError
from mixwise.models.freezing import blocks_of, trained_parts
from mixwise.parts import Count, Unit, part

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Type of model -> the query in a block, and the parts from which one position suffices; see `_only_first_position`.
_BERT = ("attention.self.query", ("attention.output",))
_FIRST_POSITION = dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT) | {
    "distilbert": ("attention.q_lin", ("attention.out_lin", "sa_layer_norm"))
}
_log = logging.getLogger(__name__)

Attention: TypeAlias = Literal["sdpa", "eager"]
Overrides: TypeAlias = dict[str, Any] | None


@part("text-classifier", "model", title="text classifier of Hugging Face")
def text_classifier(
    name: str,
    classes: Count,
    *,
    model_dir: Folder | None = None,
    data_dir: Folder | None = None,
    pretrained: bool = True,
    dropout: Unit | None = None,
    attention: Attention = "sdpa",
    overrides: Overrides = None,
) -> TextClassifier:
    """Load any `AutoModelForSequenceClassification`, with a head for these classes.

    Args:
        name: a folder with `config.json` and weights, such a folder in `data_dir`, or a name on the hub.
        classes: the number of logits; a head for another number is replaced by a new one.
        model_dir: the folder itself, or one that contains a folder `name`.
        data_dir: where datasets are; by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
        pretrained: false builds from the configuration alone, with random parameters.
        dropout: every dropout probability; by default as configured.
        attention: "sdpa" or "eager".
        overrides: entries of the configuration to change, such as `num_hidden_layers`.
    """
    folder = model_folder(name, model_dir, data_dir)
    model = _loaded("AutoModelForSequenceClassification", folder, classes, pretrained, dropout, attention, overrides)
    tokenizer = load_tokenizer(folder) if has_tokenizer(folder) else None
    return TextClassifier(model, (tokenizer.pad, tokenizer.backend.sep_token_id) if tokenizer else None)


@part("image-classifier", "model", title="image classifier of Hugging Face")
def image_classifier(
    name: str,
    classes: Count,
    *,
    model_dir: Folder | None = None,
    data_dir: Folder | None = None,
    pretrained: bool = True,
    dropout: Unit | None = None,
    attention: Attention = "sdpa",
    overrides: Overrides = None,
) -> ImageClassifier:
    """Load any `AutoModelForImageClassification`, with a head for these classes; arguments as in `text_classifier`."""
    folder = model_folder(name, model_dir, data_dir)
    model = _loaded("AutoModelForImageClassification", folder, classes, pretrained, dropout, attention, overrides)
    return ImageClassifier(model)


class _Classifier(nn.Module):
    """A classifier of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads."""
        model: Any = self.model
        try:
            model.save_pretrained(folder)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written: {error}") from None


class ImageClassifier(_Classifier):
    """Images (b, channels, H, W) to logits (b, classes)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.model(pixel_values=x).logits  # type: ignore[no-any-return]


class TextClassifier(_Classifier):
    """Tokens (b, L), or the features (b, L, h) that enter block `entry`, to logits (b, classes).

    Positions of padding are those of the token `pad`; in features, those that are all 0.

    Args:
        model: a sequence classifier of transformers.
        special: the padding token and the separator of two texts, if they are not those of the configuration.
    """

    def __init__(self, model: nn.Module, special: tuple[int, int | None] | None = None) -> None:
        super().__init__(model)
        config: Any = model.config
        self.pad, self.separator = special or (int(config.pad_token_id or 0), None)
        config.pad_token_id = self.pad  # decoders use it to find the end of a text
        self.entry: int | None = None  # the block that features enter
        lists = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
        self._list = next((name for name, part in lists if list(part) == blocks_of(model)), "")
        if not self._list:
            raise ConfigError(f"{type(model).__name__} has no list of blocks; use a transformer")
        if config.model_type in _FIRST_POSITION:
            _only_first_position(self.blocks[-1], *_FIRST_POSITION[config.model_type])

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks of the encoder."""
        listed = self.model.get_submodule(self._list)
        assert isinstance(listed, nn.ModuleList)
        return listed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self._entered(x) if x.is_floating_point() else self._logits(x, (x != self.pad).long())

    def features(self, tokens: torch.Tensor, entry: int) -> torch.Tensor:
        """Return the input of block `entry` ≥ 1, or of the head if it is the number of blocks: (b, L, h), 0 at padding.

        It is the output of the block before; the rest of the model is not computed.
        """
        mask = tokens != self.pad

        def catch(block: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            raise _Caught(out if isinstance(out, torch.Tensor) else out[0])

        hook = self.blocks[entry - 1].register_forward_hook(catch)
        try:
            self._logits(tokens, mask.long())
        except _Caught as caught:
            features: torch.Tensor = caught.args[0]
            return features * mask[:, : features.shape[1]].unsqueeze(-1)
        finally:
            hook.remove()
        raise AssertionError("the block was not reached")

    def _entered(self, features: torch.Tensor) -> torch.Tensor:
        """Run the upper part alone; the embeddings get arbitrary tokens, and their output is discarded."""
        if self.entry is None:
            raise ConfigError("the block that these features enter is unknown; compute them with with_features")
        features = features.to(next(self.blocks.parameters()).dtype)
        mask = (features != 0).any(-1).long()
        tokens = torch.where(mask == 1, int(self.pad == 0), self.pad)
        path, _, name = self._list.rpartition(".")
        owner, whole = self.model.get_submodule(path), self.blocks
        owner._modules[name] = nn.ModuleList([_Constant(features), *whole[self.entry :]])
        try:
            return self._logits(tokens, mask)
        finally:
            owner._modules[name] = whole

    def _logits(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        more = {}
        if getattr(self.model.config, "type_vocab_size", 0) >= 2 and self.separator is not None:
            ends = (tokens == self.separator).long()  # types as in BERT: 1 in the second text of a pair
            more["token_type_ids"] = ((ends.cumsum(1) - ends) > 0).long() * mask
        return self.model(input_ids=tokens, attention_mask=mask, **more).logits  # type: ignore[no-any-return]


class _Constant(nn.Module):
    """Returns the same features for any input."""

    def __init__(self, features: torch.Tensor) -> None:
        super().__init__()
        self.features = features

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the features."""
        return self.features


class _Caught(Exception):  # noqa: N818  # not an error
    """Ends a forward pass of which only the features are needed."""


def _only_first_position(block: nn.Module, query: str, parts: tuple[str, ...]) -> None:
    """Restrict the last block to the position that the head reads.

    The head of BERT and its relatives reads only the first position of the last block. Keys and values are needed for
    all positions; the query, and everything after the attention, only for the first: the same logits in less than a
    third of the time for that block.
    """

    def first(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tuple(map(_cut, args)), {key: _cut(value) for key, value in kwargs.items()}

    def first_of_many(part: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        part.__dict__["positions"] = args[0].shape[1]  # for `for_all`
        return args[0][:, :1]

    def for_all(part: nn.Module, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """Repeat the query: the attention expects as many queries as keys, contiguous in memory."""
        return out.expand(-1, part.__dict__["positions"], -1).contiguous()

    block.get_submodule(query).register_forward_pre_hook(first_of_many)
    block.get_submodule(query).register_forward_hook(for_all)
    for path in parts:
        block.get_submodule(path).register_forward_pre_hook(first, with_kwargs=True)


def _cut(value: Any) -> Any:
    return value[:, :1] if isinstance(value, torch.Tensor) else value


def _loaded(
    auto: str, folder: Path, classes: int, pretrained: bool, dropout: float | None, attention: str, overrides: Overrides
) -> nn.Module:
    """Load a classifier of transformers, in training mode."""
    transformers = optional("transformers", "text")
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} contains no config.json; give the folder of a model in the format of Hugging Face")
    if pretrained and not any((folder / name).exists() for name in _WEIGHTS):
        raise DataError(f"{folder} contains no weights ({_WEIGHTS[0]}); download them, or set pretrained: false")
    make: Any = getattr(transformers, auto)
    with loading(f"{folder} cannot be loaded as {auto}", "download the model again"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        _configure(config, classes, dropout, overrides or {}, folder)
        if not pretrained:
            return make.from_config(config, attn_implementation=attention).train()  # type: ignore[no-any-return]
        options = {"attn_implementation": attention, "dtype": torch.float32, "local_files_only": True}
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, info = make.from_pretrained(folder, config=config, **options)
    _check_loaded(model, info, folder, classes)
    return model.train()  # type: ignore[no-any-return]


def _configure(config: Any, classes: int, dropout: float | None, overrides: dict[str, Any], folder: Path) -> None:
    """Change the configuration as requested."""
    config.num_labels = classes
    for key, value in config.to_dict().items():
        if dropout is not None and ("dropout" in key or key.endswith("pdrop")) and isinstance(value, int | float):
            setattr(config, key, float(dropout))
    for key, value in overrides.items():
        if not hasattr(config, key):
            raise ConfigError(f"overrides: the configuration of {folder} has no {key!r}; see its config.json")
        setattr(config, key, value)


def _check_loaded(model: nn.Module, info: Any, folder: Path, classes: int) -> None:
    """Log that the head is new; raise an error if parameters of the lower part are missing in the weights."""
    found = {name: shape for name, shape, _ in info["mismatched_keys"]}
    new = {*info["missing_keys"], *found}
    if blocks_of(model):
        head = {id(p) for part in trained_parts(model, "head") for p in part.parameters()}
        if lower := [name for name, p in model.named_parameters() if name in new and id(p) not in head]:
            wrong = f"{lower[0]} is missing or has another shape ({len(lower)} in all)"
            raise DataError(f"{folder}: its weights do not fit its config.json: {wrong}; download the model again")
    if found:
        had = next(iter(found.values()))[0]
        _log.warning("%s has a head for %d classes; it is replaced by a new one for %d", folder, had, classes)
    elif new:
        _log.info("%s has no head for %d classes; a new one is created", folder, classes)
