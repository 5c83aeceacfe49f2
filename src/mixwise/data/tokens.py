"""Texts as tokens: the tokenizer of a pretrained model, tokens that are cached on disk, and samples of any length."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import Samples
from mixwise.data.files import Folder, ProgressLog
from mixwise.data.hub_files import model_folder, optional, quiet
from mixwise.data.ragged import Ragged, cached_rows, content_key, write_rows
from mixwise.errors import DataError

Text: TypeAlias = str | tuple[str, str]  # one text, or a pair that the tokenizer joins in its own way

_CHUNK = 1000  # texts
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_log = logging.getLogger(__name__)


class RaggedSamples(Samples):
    """Rows of a `Ragged`, all of them or those at `index`, padded to the longest of a batch."""

    dtype: npt.DTypeLike | None = None  # of a batch; by default that of the rows

    def __init__(self, rows: Ragged, index: torch.Tensor | None = None, pad: int = 0) -> None:
        self.rows, self.pad = rows, pad
        self.index = torch.arange(len(rows)) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """Return one batch (b, L, …), L the longest of these samples; nothing is random."""
        found = [self.rows[row] for row in self.index[indices].tolist()]
        shape = (len(found), max((len(row) for row in found), default=0), *self.rows.values.shape[1:])
        batch = np.full(shape, self.pad, self.dtype or self.rows.values.dtype)
        for place, row in zip(batch, found, strict=True):
            place[: len(row)] = row
        return torch.from_numpy(batch)

    def subset(self, indices: torch.Tensor) -> Self:
        """Return the samples at these positions, in this order."""
        part = copy.copy(self)
        part.index = self.index[indices]
        return part


class TokenSamples(RaggedSamples):
    """Tokens of texts, (b, L) int64, padded with `pad` to the longest of a batch.

    Args:
        rows: the tokens, (T,) int32.
        pad: the padding token.
        max_length: the largest number of tokens of a text.
        index: the positions in `rows`; all by default.
    """

    dtype = np.int64  # as an embedding requires

    def __init__(self, rows: Ragged, pad: int, max_length: int, index: torch.Tensor | None = None) -> None:
        super().__init__(rows, index, pad)
        self.max_length = max_length

    @property
    def kind(self) -> str:
        """A description of one sample."""
        return f"texts of up to {self.max_length} tokens"


class FeatureSamples(RaggedSamples):
    """The input of a block of a model, (b, L, h) in floating point; positions of padding are 0.

    Args:
        rows: (T, h).
        index: the positions in `rows`; all by default.
    """

    @property
    def kind(self) -> str:
        """A description of one sample."""
        return f"features of {self.rows.values.shape[1]} numbers per token"


def tokenized(texts: Sequence[Text], tokenizer: Folder, max_length: int = 128, name: str = "texts") -> TokenSamples:
    """Convert texts to tokens; the tokens are cached on disk.

    Args:
        texts: each a string, or a pair of strings.
        tokenizer: the folder or the name of a pretrained model, as in `models.text_classifier`.
        max_length: longer texts are truncated, special tokens included.
        name: for messages.
    """
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 3:
        raise DataError(f"max_length = {max_length!r}; it must be a whole number of tokens, 3 or larger")
    encode = load_tokenizer(tokenizer)
    content = "\0".join(text if isinstance(text, str) else "\1".join(text) for text in texts)

    def write(folder: Path) -> None:
        progress = ProgressLog(_log, f"{name}: tokens of {len(texts)} texts", len(texts))
        rows: list[list[int]] = []
        for start in range(0, len(texts), _CHUNK):
            rows += encode(texts[start : start + _CHUNK], max_length)
            progress(len(rows))
        if [] in rows:
            raise DataError(f"{name}: text {rows.index([])} has no tokens; leave out empty texts")
        write_rows(folder, [len(row) for row in rows], (), np.int32, (np.array(row, np.int32) for row in rows))

    key = content_key("tokens", encode.checksum, str(max_length), content)
    return TokenSamples(cached_rows(key, write), encode.pad, max_length)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Converts texts to tokens.

    Attributes:
        backend: the tokenizer of transformers.
        pad: the padding token.
        checksum: of everything that determines the tokens of a text.
    """

    backend: Any
    pad: int
    checksum: str

    def __call__(self, texts: Sequence[str | tuple[str, str]], max_length: int) -> list[list[int]]:
        """Return the tokens of each text, or of each pair of texts, at most `max_length`."""
        first = [text if isinstance(text, str) else text[0] for text in texts]
        second = None if isinstance(texts[0], str) else [text[1] for text in texts]
        encoded = self.backend(first, second, truncation=True, max_length=max_length, return_attention_mask=False)
        tokens: list[list[int]] = encoded["input_ids"]
        return tokens


def load_tokenizer(model: Folder) -> Tokenizer:
    """Load the tokenizer of a model, by its folder or name; each folder is read once."""
    return _loaded(str(model_folder(str(model))))


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder contains the files of a tokenizer."""
    return any((folder / name).exists() for name in _FILES)


@lru_cache(maxsize=4)
def _loaded(folder: str) -> Tokenizer:
    transformers = optional("transformers", "text")
    if not has_tokenizer(Path(folder)):
        remedy = "copy the files of the model's tokenizer there, or name another one with tokenizer=…"
        raise DataError(f"{folder} contains no tokenizer ({', '.join(_FILES[:3])}, …); {remedy}")
    with quiet():
        try:
            backend = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # each of its many classes raises its own for files that it cannot read
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{folder}: its tokenizer cannot be read ({reason}); download it again") from None
    pad = backend.pad_token_id if backend.pad_token_id is not None else backend.eos_token_id
    if pad is None:
        raise DataError(f"{folder}: its tokenizer has neither a padding nor an end-of-text token; set its pad_token")
    if backend.is_fast:
        content = backend.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(backend).__name__, sorted(backend.get_vocab().items()), repr(backend.init_kwargs)])
    return Tokenizer(backend, int(pad), hashlib.sha256(content.encode()).hexdigest())
