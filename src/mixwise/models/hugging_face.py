"""Pretrained classifiers of Hugging Face as plain modules: one tensor in, logits out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixwise.data.files import Folder
from mixwise.data.hub_files import model_folder, optional, quiet
from mixwise.data.tokenizer import has_tokenizer, load_tokenizer
from mixwise.errors import ConfigError, DataError, MixwiseError
from mixwise.models.factory import checked_size
from mixwise.models.first_position import only_first_position
from mixwise.models.freezing import blocks_of, first_trained, from_part
from mixwise.parts import part

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_log = logging.getLogger(__name__)


@part("text-classifier", "model", title="text classifier of Hugging Face")
def text_classifier(
    name: str,
    classes: int,
    *,
    model_dir: Folder | None = None,
    data_dir: Folder | None = None,
    pretrained: bool = True,
    dropout: float | None = None,
    attention: str = "sdpa",
    overrides: dict[str, Any] | None = None,
) -> TextClassifier:
    """Any `AutoModelForSequenceClassification`, with a head for these classes.

    Args:
        name: a folder with `config.json` and weights, such a folder below `data_dir`, or a name on the hub.
        classes: how many logits; a head for another number is replaced by a new one.
        model_dir: the folder itself, or one that holds a folder `name`.
        data_dir: where data sets lie; by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
        pretrained: false builds from the configuration alone, with random parameters.
        dropout: every probability of dropout; by default as configured.
        attention: "sdpa" or "eager".
        overrides: entries of the configuration to be changed, such as `num_hidden_layers`.
    """
    options = (classes, pretrained, dropout, attention, overrides)
    folder = model_folder(name, model_dir, data_dir)
    model = _loaded("AutoModelForSequenceClassification", folder, *options)
    if not has_tokenizer(folder):
        return TextClassifier(model)
    tokenizer = load_tokenizer(folder)
    return TextClassifier(model, (tokenizer.pad, tokenizer.backend.sep_token_id))


@part("image-classifier", "model", title="image classifier of Hugging Face")
def image_classifier(
    name: str,
    classes: int,
    *,
    model_dir: Folder | None = None,
    data_dir: Folder | None = None,
    pretrained: bool = True,
    dropout: float | None = None,
    attention: str = "sdpa",
    overrides: dict[str, Any] | None = None,
) -> ImageClassifier:
    """Any `AutoModelForImageClassification`, with a head for these classes; the arguments are those for texts."""
    options = (classes, pretrained, dropout, attention, overrides)
    folder = model_folder(name, model_dir, data_dir)
    return ImageClassifier(_loaded("AutoModelForImageClassification", folder, *options))


class ImageClassifier(nn.Module):
    """Images (b, channels, H, W) to logits (b, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        logits: torch.Tensor = self.model(pixel_values=x).logits
        return logits

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads."""
        _saved(self.model, folder)


class TextClassifier(nn.Module):
    """Tokens (b, L), or the features (b, L, h) that enter block `entry`, to logits (b, classes).

    Positions of padding are those of the token `pad`; in features, those that are all 0.

    Args:
        model: a sequence classifier of transformers.
        special: the tokens for padding and between two texts, if they are not those of the configuration.
    """

    def __init__(self, model: nn.Module, special: tuple[int, int | None] | None = None) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.pad, self.separator = special or (int(config.pad_token_id or 0), None)
        config.pad_token_id = self.pad  # decoders find the end of a text by it
        self.entry: int | None = None  # the block that features enter
        lists = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
        self._list = next((name for name, part in lists if list(part) == blocks_of(model)), "")
        if not self._list:
            raise ConfigError(f"{type(model).__name__} has no list of blocks; take a transformer")
        only_first_position(model, config.model_type)

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks of the encoder."""
        listed = self.model.get_submodule(self._list)
        assert isinstance(listed, nn.ModuleList)
        return listed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        if x.is_floating_point():
            return self._entered(x)
        return self._logits(x, (x != self.pad).long())

    def features(self, tokens: torch.Tensor, entry: int) -> torch.Tensor:
        """What enters block `entry`, or the head if `entry` is their number: (b, L, h), 0 where there is padding."""
        mask = tokens != self.pad
        caught: list[torch.Tensor] = []

        def catch(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any = None) -> None:
            given = out if out is not None else args[0] if args else kwargs["hidden_states"]
            caught.append(given if isinstance(given, torch.Tensor) else given[0])
            raise _Enough

        if entry < len(self.blocks):
            hook = self.blocks[entry].register_forward_pre_hook(catch, with_kwargs=True)
        else:
            hook = self.blocks[-1].register_forward_hook(catch, with_kwargs=True)
        try:
            self._logits(tokens, mask.long())
        except _Enough:
            return caught[0] * mask[:, : caught[0].shape[1]].unsqueeze(-1)
        finally:
            hook.remove()
        raise AssertionError("the block was not reached")

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads."""
        _saved(self.model, folder)

    def _entered(self, features: torch.Tensor) -> torch.Tensor:
        """The upper part alone; the embeddings are given anything, and what they say is thrown away."""
        if self.entry is None:
            raise ConfigError("features were given, but not at which block they enter; make them with with_features")
        features = features.to(next(self.blocks.parameters()).dtype)
        mask = (features != 0).any(-1).long()
        anything = torch.where(mask == 1, int(self.pad == 0), self.pad)
        path, _, name = self._list.rpartition(".")
        owner, whole = self.model.get_submodule(path), self.blocks
        owner._modules[name] = nn.ModuleList([_Given(features), *whole[self.entry :]])
        try:
            return self._logits(anything, mask)
        finally:
            owner._modules[name] = whole

    def _logits(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        more = {} if (types := self._types(tokens, mask)) is None else {"token_type_ids": types}
        logits: torch.Tensor = self.model(input_ids=tokens, attention_mask=mask, **more).logits
        return logits

    def _types(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """0 up to the first separator, 1 in the second text of a pair, as BERT knows them."""
        if getattr(self.model.config, "type_vocab_size", 0) < 2 or self.separator is None:
            return None
        ends = (tokens == self.separator).long()
        return ((ends.cumsum(1) - ends) > 0).long() * mask


class _Given(nn.Module):
    """Says what it was made with, whatever it hears."""

    def __init__(self, features: torch.Tensor) -> None:
        super().__init__()
        self.features = features

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The features."""
        return self.features


class _Enough(Exception):  # noqa: N818  # no error: the features are there
    """The rest of the forward pass is not needed."""


def _loaded(
    auto: str,
    folder: Path,
    classes: int,
    pretrained: bool,
    dropout: float | None,
    attention: str,
    overrides: dict[str, Any] | None,
) -> nn.Module:
    """A classifier of transformers, in training mode."""
    transformers = optional("transformers", "text")
    if attention not in ("sdpa", "eager"):
        raise ConfigError(f"attention = {attention!r}; choose sdpa or eager")
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} holds no config.json; give the folder of a model in the format of Hugging Face")
    if pretrained and not any((folder / name).exists() for name in _WEIGHTS):
        raise DataError(
            f"{folder} holds no weights ({_WEIGHTS[0]}); download them, or start with random ones (pretrained: false)"
        )
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            had = config.num_labels if "id2label" in config.to_diff_dict() else None
            _configured(config, dropout, overrides or {}, folder)
            config.num_labels = checked_size("classes", classes)
            make: Any = getattr(transformers, auto)
            if not pretrained:
                return make.from_config(config, attn_implementation=attention).train()  # type: ignore[no-any-return]
            model, info = make.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                attn_implementation=attention,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except MixwiseError:
            raise
        except Exception as error:  # whatever the many classes behind it raise for files that they cannot read
            reason = " ".join(str(error).split())[:300]
            raise DataError(f"{folder} cannot be loaded as {auto}: {reason}") from None
    _check_loaded(model, info, folder, had, classes)
    return model.train()  # type: ignore[no-any-return]


def _configured(config: Any, dropout: float | None, overrides: dict[str, Any], folder: Path) -> None:
    """Change the configuration as asked."""
    if dropout is not None:
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ConfigError(f"dropout = {dropout!r}; give a probability of at least 0 and below 1")
        for key, value in config.to_dict().items():
            if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, int | float):
                setattr(config, key, float(dropout))
    for key, value in overrides.items():
        if not hasattr(config, key):
            raise ConfigError(f"overrides: the configuration of {folder} has no {key!r}; look at its config.json")
        setattr(config, key, value)


def _check_loaded(model: nn.Module, info: Any, folder: Path, had: int | None, classes: int) -> None:
    """A new head is said; a lower part that the weights do not hold is an error."""
    new = set(info["missing_keys"]) | {entry[0] for entry in info["mismatched_keys"]}
    blocks = blocks_of(model)
    head = first_trained(model, "head") if blocks else None
    if head is not None:
        parts = from_part(model, head)
        above = {id(p) for part in parts for p in part.parameters()}
        if lower := [name for name, p in model.named_parameters() if name in new and id(p) not in above]:
            raise DataError(
                f"{folder}: its weights do not fit its config.json: {lower[0]} is missing or has another shape"
                + (f", and {len(lower) - 1} more" if len(lower) > 1 else "")
                + "; download the model again, or give the folder of one whose parts belong together"
            )
    if info["mismatched_keys"]:
        _log.warning("%s has a head for %s classes; a new one for %d is made", folder, had or 2, classes)
    elif new:
        _log.info("%s has no head for %d classes; a new one is made", folder, classes)


def _saved(model: Any, folder: Path) -> None:
    try:
        model.save_pretrained(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from None
