"""What a frozen lower part of a text classifier makes of the data, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data import Dataset
from mixwise.data.progress import ProgressLog
from mixwise.data.ragged import cached_rows, content_key, write_rows
from mixwise.data.tokens import FeatureSamples, TokenSamples
from mixwise.errors import ConfigError
from mixwise.models.freezing import first_trained, from_part
from mixwise.models.hugging_face import TextClassifier

_AT_ONCE = 64
_ABOVE = (
    "label",
    "problem",
    "dropout",
    "architectures",
    "version",
)  # entries of a configuration that change no feature
_log = logging.getLogger(__name__)

Precision = Literal["float16", "float32"]


def entry_of(module: TextClassifier) -> int | None:
    """Where features enter: the first trained block, or the head; None if nothing below all trained parts is frozen."""
    trained = [any(p.requires_grad for p in block.parameters()) for block in module.blocks]
    entry = trained.index(True) if True in trained else len(trained)
    below = first_trained(module, len(trained) - entry or "head")
    assert below is not None
    above = {id(p) for part in from_part(module, below) for p in part.parameters()}
    frozen = all(id(p) in above for p in module.parameters() if p.requires_grad)
    return entry if frozen and entry > 0 else None


@torch.no_grad()
def with_features(data: Dataset, module: TextClassifier, precision: Precision = "float16") -> Dataset:
    """The same data set with what enters the first trained block of `module` instead of tokens.

    From now on `module` takes such features, too; its logits are those of the tokens, up to the rounding of float16.

    Args:
        data: of `TokenSamples`.
        module: whose lower part is frozen (`models.freeze`).
        precision: float16 takes half the space; a feature then has 3 to 4 digits.
    """
    samples, entry = data.x, entry_of(module)
    if not isinstance(samples, TokenSamples):
        raise ConfigError(f"features are made of tokens; {data.name} holds {data.kind}")
    if entry is None:
        raise ConfigError("features need a lower part that is frozen; choose train: head, or a number of blocks")
    tokens, device = TokenSamples(samples.rows, samples.pad, samples.max_length), next(module.parameters()).device
    key = content_key("features", samples.rows.key, _lower_part(module, entry), precision)

    def make(folder: Path) -> None:
        progress = ProgressLog(_log, f"{data.name}: features of {len(tokens)} texts", len(tokens))
        first = tokens.take(torch.arange(min(len(tokens), 4))).to(device)
        _check(module, first, entry)
        width, shape = module.features(first, entry).shape[1:]
        lengths = np.minimum(tokens.rows.lengths, width) if width < first.shape[1] else tokens.rows.lengths

        def parts() -> Iterator[npt.NDArray[Any]]:
            for start in range(0, len(tokens), _AT_ONCE):
                at = range(start, min(start + _AT_ONCE, len(tokens)))
                found = module.features(tokens.take(torch.tensor(at)).to(device), entry)
                found = torch.cat([row[: lengths[i]] for i, row in zip(at, found.cpu(), strict=True)])
                yield _rounded(found, precision)
                progress(at.stop)

        write_rows(folder, lengths, (shape,), precision, parts())

    with _judged(module):
        features = FeatureSamples(cached_rows(key, make), samples.index)
    module.entry = entry
    return replace(data, x=features)


def _check(module: TextClassifier, tokens: torch.Tensor, entry: int) -> None:
    """See that this model can be entered there: its blocks may share more than what one hands to the next."""
    before, module.entry = module.entry, entry
    try:
        there, expected = module(module.features(tokens, entry)), module(tokens)
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError):
        there, expected = torch.tensor(torch.nan), torch.tensor(0.0)
    module.entry = before
    if not torch.allclose(there, expected, rtol=1e-3, atol=1e-4):
        raise ConfigError(
            f"{type(module.model).__name__} gives other logits when its block {entry} is entered from outside; "
            f"set task.cache_features=false"
        )


def _rounded(found: torch.Tensor, precision: Precision) -> npt.NDArray[Any]:
    rounded = found.to(getattr(torch, precision))
    if not torch.isfinite(rounded).all():
        raise ConfigError(f"a feature of {float(found.abs().max()):.3g} does not fit {precision}; take float32")
    values: npt.NDArray[Any] = rounded.numpy()
    return values


def _lower_part(module: TextClassifier, entry: int) -> str:
    """A checksum of all that features depend on besides the tokens."""
    model: Any = module.model
    config = {key: value for key, value in model.config.to_diff_dict().items() if not any(w in key for w in _ABOVE)}
    digest = hashlib.sha256(repr((config, entry, module.pad, module.separator)).encode())
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().numpy().data)
    return digest.hexdigest()


@contextmanager
def _judged(module: torch.nn.Module) -> Iterator[None]:
    """All parts in eval mode, afterwards as they were."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
