"""Texts as tokens: the tokenizer of a pretrained model, and samples of different lengths that are cached on disk.

Rows of different lengths, tokens or features, are computed once and read through a memory map. Each content has a
folder, named by a key of what it was computed from. The folder appears complete or not at all, so that several
processes may compute it at the same time; a damaged one is computed again.

Legend: values (T, …), all rows one after the other; offsets (N + 1,), row i is values[offsets[i] : offsets[i + 1]].
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.data.dataset import IndexedSamples
from mixwise.data.files import Folder, ProgressLog, data_folder, loading, model_folder, optional
from mixwise.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
Text: TypeAlias = str | tuple[str, str]  # one text, or a pair that the tokenizer joins in its own way

_CHUNK = 1000  # texts
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_VALUES, _OFFSETS, _SEAL = "values.npy", "offsets.npy", "seal.json"
_MOST_TOKENS = 1 << 24  # of a vocabulary; large ones have a quarter of a million
_CHECKED = 1 << 26  # bytes; only the size of larger files is verified, or opening one would take as long as reading it


class RaggedSamples(IndexedSamples):
    """Rows of a `Ragged`, padded to the longest of a batch."""

    dtype: npt.DTypeLike | None = None  # of a batch; by default that of the rows

    def __init__(self, rows: Ragged, pad: int = 0) -> None:
        super().__init__(len(rows))
        self.rows, self.pad = rows, pad

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """Return one batch (b, L, …), L the longest of these samples; nothing is random."""
        found = [self.rows[row] for row in self.index[indices].tolist()]
        shape = (len(found), max((len(row) for row in found), default=0), *self.rows.values.shape[1:])
        batch = np.full(shape, self.pad, self.dtype or self.rows.values.dtype)
        for place, row in zip(batch, found, strict=True):
            place[: len(row)] = row
        return torch.from_numpy(batch)


class TokenSamples(RaggedSamples):
    """Tokens of texts, (b, L) int64, padded with `pad` to the longest of a batch.

    Args:
        rows: the tokens, (T,) int32.
        pad: the padding token.
        max_length: the largest number of tokens of a text.
    """

    dtype = np.int64  # as an embedding requires

    def __init__(self, rows: Ragged, pad: int, max_length: int) -> None:
        super().__init__(rows, pad)
        self.max_length = max_length

    @property
    def kind(self) -> str:
        """A description of one sample."""
        return f"texts of up to {self.max_length} tokens"


class FeatureSamples(RaggedSamples):
    """The input of a block of a model, (b, L, h) in floating point; positions of padding are 0.

    Args:
        rows: (T, h).
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
    if max_length < 3:
        raise DataError(f"max_length = {max_length}; it must be a number of tokens, 3 or larger")
    encode = load_tokenizer(tokenizer)
    content = "\0".join(text if isinstance(text, str) else "\1".join(text) for text in texts)

    def write(folder: Path) -> None:
        progress = ProgressLog(f"{name}: tokens of {len(texts)} texts", len(texts))
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

    def __call__(self, texts: Sequence[Text], max_length: int) -> list[list[int]]:
        """Return the tokens of each text, or of each pair of texts, at most `max_length`."""
        first = [text if isinstance(text, str) else text[0] for text in texts]
        second = None if isinstance(texts[0], str) else [text[1] for text in texts]
        encoded = self.backend(first, second, truncation=True, max_length=max_length, return_attention_mask=False)
        return encoded["input_ids"]  # type: ignore[no-any-return]


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
    with loading(f"{folder}: its tokenizer cannot be read", "download it again"):
        backend = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    vocabulary = backend.get_vocab()
    largest = max(vocabulary.values(), default=0)
    if largest >= _MOST_TOKENS:  # written out, the numbers before it would take gigabytes
        raise DataError(
            f"{folder}: the vocabulary of its tokenizer has {len(vocabulary)} tokens, but one of them has the number "
            f"{largest}; numbers are below {_MOST_TOKENS}: download it again"
        )
    pad = backend.pad_token_id if backend.pad_token_id is not None else backend.eos_token_id
    if pad is None:
        raise DataError(f"{folder}: its tokenizer has neither a padding nor an end-of-text token; set its pad_token")
    if backend.is_fast:
        content = backend.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(backend).__name__, sorted(vocabulary.items()), repr(backend.init_kwargs)])
    return Tokenizer(backend, int(pad), hashlib.sha256(content.encode()).hexdigest())


# --- rows on disk ---
@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of different lengths, and the key of what they were computed from."""

    values: Array
    offsets: npt.NDArray[np.int64]
    key: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def cache_folder() -> Path:
    """Return the cache of tokens and features: `$MIXWISE_CACHE`, else the folder `prepared` beside the datasets."""
    return Path(os.environ.get("MIXWISE_CACHE") or data_folder(None, "prepared")).expanduser()


def content_key(kind: str, *parts: str) -> str:
    """Return a name for what is computed from these parts.

    >>> content_key("tokens", "a", "b") == content_key("tokens", "ab")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()[:32]}"


def cached_rows(key: str, write: Callable[[Path], None]) -> Ragged:
    """Open the rows of this key; if they are missing or damaged, `write` writes them first (`write_rows`)."""
    place = cache_folder() / key
    if (found := _opened(place)) is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent, ignore_cleanup_errors=True) as scratch:
            new = Path(scratch) / key
            new.mkdir()
            write(new)
            (new / _SEAL).write_text(json.dumps(_fingerprint(new)), "utf-8")
            for _ in range(2):
                with suppress(OSError):  # another process was faster, or a damaged folder is in the way
                    new.rename(place)
                if (found := _opened(place)) is not None:
                    return found
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{place}: cannot be written ({reason}); set MIXWISE_CACHE to another folder") from None
    raise DataError(f"{place}: cannot be replaced; delete it, or set MIXWISE_CACHE to another folder")


def write_rows(folder: Path, lengths: npt.ArrayLike, row: tuple[int, ...], dtype: Any, parts: Iterable[Array]) -> None:
    """Write rows, given their lengths, the shape of one entry, and their values in order, in parts of any size."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    np.save(folder / _OFFSETS, offsets)
    total = int(offsets[-1])
    needed, free = total * math.prod(row) * np.dtype(dtype).itemsize, shutil.disk_usage(folder).free
    if needed > free:
        found = f"{folder.parent.parent} has {free / 1e9:.1f} GB of free space, {needed / 1e9:.1f} GB are needed"
        raise DataError(f"{found}; set MIXWISE_CACHE to another folder, or disable the cache")
    with (folder / _VALUES).open("wb") as out:  # plain writes: a memory map on a full disk kills the process
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (total, *row)}
        np.lib.format.write_array_header_1_0(out, header)
        for part in parts:
            out.write(np.ascontiguousarray(part, dtype).tobytes())


def _fingerprint(folder: Path) -> dict[str, list[int]]:
    """Return the size and the checksum of each file."""
    found = {}
    for path in (folder / _VALUES, folder / _OFFSETS):
        size = path.stat().st_size
        found[path.name] = [size, zlib.crc32(path.read_bytes()) if size <= _CHECKED else 0]
    return found


def _opened(place: Path) -> Ragged | None:
    """Open the rows in a folder; None if they are missing or damaged."""
    try:
        if json.loads((place / _SEAL).read_text("utf-8")) != _fingerprint(place):
            return None
        return Ragged(np.load(place / _VALUES, mmap_mode="r"), np.load(place / _OFFSETS), place.name)
    except (OSError, ValueError):
        return None
