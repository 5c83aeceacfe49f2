"""The tokenizer of a pretrained model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixwise.data.files import Folder
from mixwise.data.hub_files import model_folder, optional, quiet
from mixwise.errors import DataError

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


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
        raise DataError(
            f"{folder} contains no tokenizer ({', '.join(_FILES[:3])}, …); copy the files of the model's tokenizer "
            f"there, or name the folder of another one with task.data.options.tokenizer"
        )
    with quiet():
        try:
            backend = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # each of its many classes raises its own for files that it cannot read
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{folder}: its tokenizer cannot be read ({reason}); download it again") from None
    pad = backend.pad_token_id if backend.pad_token_id is not None else backend.eos_token_id
    if pad is None:
        raise DataError(f"{folder}: its tokenizer has neither a padding nor an end-of-text token; set its pad_token")
    content = (
        backend.backend_tokenizer.to_str()
        if backend.is_fast
        else json.dumps([type(backend).__name__, sorted(backend.get_vocab().items()), repr(backend.init_kwargs)])
    )
    return Tokenizer(backend, int(pad), hashlib.sha256(content.encode()).hexdigest())
