"""The features that the frozen lower part of a text classifier computes from the data, cached on disk."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data import Dataset
from mixwise.data.files import ProgressLog
from mixwise.data.tokens import FeatureSamples, TokenSamples, cached_rows, content_key, write_rows
from mixwise.errors import ConfigError
from mixwise.models.freezing import trained_parts
from mixwise.models.hugging_face import TextClassifier

_CHUNK = 64  # texts
_IRRELEVANT = ("label", "problem", "dropout", "architectures", "version")  # in a configuration, for features

Precision = Literal["float16", "float32"]


def entry_of(module: TextClassifier) -> int | None:
    """Return the first trained block, or the number of blocks for the head; None if no part below it is frozen."""
    trained = [any(p.requires_grad for p in block.parameters()) for block in module.blocks]
    entry = trained.index(True) if True in trained else len(trained)
    above = {id(p) for part in trained_parts(module, len(trained) - entry or "head") for p in part.parameters()}
    frozen = all(id(p) in above for p in module.parameters() if p.requires_grad)
    return entry if frozen and entry > 0 else None


@torch.no_grad()
def with_features(data: Dataset, module: TextClassifier, precision: Precision = "float16") -> Dataset:
    """Replace the tokens of a dataset by the features that enter the first trained block of `module`.

    From now on, `module` also accepts such features; its logits are those of the tokens, up to the rounding of float16.

    Args:
        data: a dataset of `TokenSamples`.
        module: a classifier with a frozen lower part (`models.freeze`).
        precision: float16 needs half the space and has 3 to 4 significant digits.
    """
    samples, entry = data.x, entry_of(module)
    if not isinstance(samples, TokenSamples):
        raise ConfigError(f"features are computed from tokens; {data.name} holds {data.kind}")
    if entry is None:
        raise ConfigError("features need a frozen lower part; choose train: head, or a number of blocks")
    tokens, device = TokenSamples(samples.rows, samples.pad, samples.max_length), next(module.parameters()).device

    def write(folder: Path) -> None:
        model = copy.deepcopy(module).eval()
        model.entry = entry
        first = tokens.take(torch.arange(min(len(tokens), 4))).to(device)
        _check(model, first, entry)
        width, shape = model.features(first, entry).shape[1:]
        lengths = np.diff(tokens.rows.offsets)
        lengths = np.minimum(lengths, width) if width < first.shape[1] else lengths  # the head may read one position
        progress = ProgressLog(f"{data.name}: features of {len(tokens)} texts", len(tokens))

        def parts() -> Iterator[npt.NDArray[Any]]:
            for at in torch.split(torch.arange(len(tokens)), _CHUNK):
                found = model.features(tokens.take(at).to(device), entry).cpu()
                found = torch.cat([row[: lengths[i]] for i, row in zip(at, found, strict=True)])
                rounded = found.to(getattr(torch, precision))
                if not torch.isfinite(rounded).all():
                    raise ConfigError(f"a feature of {float(found.abs().max()):.3g} overflows {precision}; use float32")
                yield rounded.numpy()
                progress(int(at[-1]) + 1)

        write_rows(folder, lengths, (shape,), precision, parts())

    key = content_key("features", samples.rows.key, _lower_part(module, entry), precision)
    features = FeatureSamples(cached_rows(key, write)).subset(samples.index)
    module.entry = entry
    return replace(data, x=features)


def _check(module: TextClassifier, tokens: torch.Tensor, entry: int) -> None:
    """Check that this model can be entered there: its blocks may share more than the input of the next one."""
    try:
        same = torch.allclose(module(module.features(tokens, entry)), module(tokens), rtol=1e-3, atol=1e-4)
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError):
        same = False
    if not same:
        name = type(module.model).__name__
        raise ConfigError(f"{name} gives other logits from features of block {entry}; set task.cache_features=false")


def _lower_part(module: TextClassifier, entry: int) -> str:
    """Return a checksum of everything besides the tokens that features depend on."""
    model: Any = module.model
    config = {k: v for k, v in model.config.to_diff_dict().items() if not any(word in k for word in _IRRELEVANT)}
    digest = hashlib.sha256(repr((config, entry, module.pad, module.separator)).encode())
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().numpy().data)
    return digest.hexdigest()
