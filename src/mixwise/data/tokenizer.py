"""The tokenizer of a pretrained model, as much of it as data need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixwise.data.hub_files import model_folder, optional, quiet
from mixwise.errors import DataError

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Makes tokens of texts.

    Attributes:
        name: for messages.
        pad: the token that fills up short texts.
        checksum: of all that decides which tokens a text has.
    """

    name: str
    backend: Any
    pad: int
    checksum: str

    def __call__(self, texts: Sequence[str | tuple[str, str]], max_length: int) -> list[list[int]]:
        """The tokens of each text, or of each pair of texts, at most `max_length`."""
        first = [text if isinstance(text, str) else text[0] for text in texts]
        second = None if isinstance(texts[0], str) else [text[1] for text in texts]
        made = self.backend(first, second, truncation=True, max_length=max_length, return_attention_mask=False)
        tokens: list[list[int]] = made["input_ids"]
        return tokens


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a model, by its folder or name; read once per folder."""
    return _loaded(str(model_folder(str(model))))


def has_tokenizer(folder: Path) -> bool:
    """Whether the files of a tokenizer are in a folder."""
    return any((folder / name).exists() for name in _FILES)


def special_tokens(folder: Path) -> tuple[int, int | None]:
    """The token for padding, and the one between two texts, if there is one."""
    tokenizer = load_tokenizer(folder)
    return tokenizer.pad, tokenizer.backend.sep_token_id


@lru_cache(maxsize=4)
def _loaded(folder: str) -> Tokenizer:
    transformers = optional("transformers", "text")
    if not has_tokenizer(Path(folder)):
        raise DataError(
            f"{folder} holds no tokenizer ({', '.join(_FILES[:3])}, …); copy the files of the model's tokenizer there, "
            f"or name the folder of another one with task.data.options.tokenizer"
        )
    with quiet():
        try:
            backend = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # whatever the many classes behind it raise for files that they cannot read
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{folder}: its tokenizer cannot be read ({reason}); download it again") from None
    pad = backend.pad_token_id if backend.pad_token_id is not None else backend.eos_token_id
    if pad is None:
        raise DataError(f"{folder}: its tokenizer knows neither padding nor an end of text; name a pad_token in it")
    return Tokenizer(Path(folder).name, backend, int(pad), _checksum(backend))


def _checksum(backend: Any) -> str:
    if backend.is_fast:
        content = backend.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(backend).__name__, sorted(backend.get_vocab().items()), repr(backend.init_kwargs)])
    return hashlib.sha256(content.encode()).hexdigest()
