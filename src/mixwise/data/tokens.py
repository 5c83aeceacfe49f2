"""Texts as tokens, made once and kept on disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from mixwise.data.ragged import Ragged, content_key, kept, write_rows
from mixwise.data.ragged_samples import RaggedSamples
from mixwise.data.said import Said
from mixwise.data.tokenizer import Tokenizer, load_tokenizer
from mixwise.errors import DataError

Text: TypeAlias = str | tuple[str, str]  # one text, or a pair that the tokenizer joins in its own way

_AT_ONCE = 1000
_log = logging.getLogger(__name__)


class TokenSamples(RaggedSamples):
    """Tokens of texts, (b, L) int64, padded with `pad` to the longest of a batch.

    Args:
        rows: the tokens, (T,) int32.
        pad: the token that means nothing.
        max_length: no text has more tokens.
        index: which of the rows; all by default.
    """

    def __init__(self, rows: Ragged, pad: int, max_length: int, index: torch.Tensor | None = None) -> None:
        super().__init__(rows, pad, index)
        self.max_length = max_length

    @property
    def kind(self) -> str:
        """What one sample is."""
        return f"texts of up to {self.max_length} tokens"

    def _dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.int64)  # what an embedding takes


def tokenized(
    texts: Sequence[Text], tokenizer: str | Path | Tokenizer, max_length: int = 128, name: str = "texts"
) -> TokenSamples:
    """Texts as tokens; found again on disk if the same tokenizer has made them of the same texts before.

    Args:
        texts: each one a string, or a pair of strings.
        tokenizer: the folder or the name of a pretrained model, as `models.text_classifier` takes it.
        max_length: longer texts are cut, special tokens included.
        name: for messages.
    """
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 3:
        raise DataError(f"max_length = {max_length!r}; give a whole number of tokens, 3 or larger")
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    made = tokenizer
    content = "\0".join(text if isinstance(text, str) else "\1".join(text) for text in texts)
    key = content_key("tokens", made.checksum, str(max_length), content)

    def make(folder: Path) -> None:
        said = Said(_log, f"{name}: tokens of {len(texts)} texts", len(texts))
        rows: list[list[int]] = []
        for start in range(0, len(texts), _AT_ONCE):
            rows += made(texts[start : start + _AT_ONCE], max_length)
            said(len(rows))
        if (empty := next((i for i, row in enumerate(rows) if not row), None)) is not None:
            raise DataError(f"{name}: text {empty} has no token; leave texts out that are empty")
        write_rows(folder, [len(row) for row in rows], (), np.int32, (np.array(row, np.int32) for row in rows))

    return TokenSamples(kept(key, make), made.pad, max_length)
