"""Files of datasets and pretrained models: where they are, and how missing ones are downloaded and verified.

Models and datasets of the Hugging Face hub are always loaded from a folder, so that a machine without a connection
behaves like any other.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import io
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mixwise import storage
from mixwise.errors import ConfigError, DataError, MixwiseError

Folder: TypeAlias = str | os.PathLike[str]

_BLOCK, _MAX_BYTES = 1 << 20, 1 << 31
_TIMEOUT = 30.0  # seconds without a byte
_HUB_TIMEOUT = 10.0  # seconds to find out whether the hub can be reached
_HUB_MODELS = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bpe"]  # no weights that need a pickle loader
_INTERVAL = 5.0  # seconds between two lines of progress
_log = logging.getLogger(__name__)


def data_folder(data_dir: Folder | None, name: str) -> Path:
    """Return the folder of the dataset `name` in `data_dir`; by default in `$MIXWISE_DATA`, else `~/.cache/mixwise`."""
    root = data_dir or os.environ.get("MIXWISE_DATA") or "~/.cache/mixwise"
    return Path(root).expanduser() / name


def contents(path: Path, sha256: str | None = None) -> bytes:
    """Return all bytes of a file; with a checksum, raise an error if it is not the published file."""
    try:
        content = storage.contents(path, _MAX_BYTES)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; restore it, or delete {path.parent} to start over") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if sha256 is not None and (found := _sha256(content)) != sha256:
        remedy = "the file is truncated or not the original: delete it to download it again, or replace it"
        raise DataError(f"{path}: {len(content)} bytes with sha256 {found}, expected {sha256}; {remedy}")
    return content


# --- published files ---
@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address and its checksum."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def fetch(remote: RemoteFile, folder: Path, remedy: str) -> Path:
    """Download a file into `folder`, which is created if missing; a file with the wrong checksum is not kept.

    Args:
        remote: the file to download.
        folder: the destination.
        remedy: the end of error messages, what to do without a connection.
    """
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = _downloaded(remote, remedy)
        with storage.replacing(target) as part:
            part.write_bytes(content)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error}); choose another data_dir or set MIXWISE_DATA") from None
    return target


def _downloaded(remote: RemoteFile, remedy: str) -> bytes:
    content = bytearray()
    try:
        with urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as response:
            progress = ProgressLog(f"downloading {remote.name}", int(response.headers.get("Content-Length") or 0))
            while (block := response.read(_BLOCK)) and len(content) <= _MAX_BYTES:
                content += block
                progress(len(content))
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{remote.url} cannot be downloaded ({_reason(error)}); {remedy}") from None
    if (sha256 := _sha256(content)) != remote.sha256:
        found = f"downloaded {len(content)} bytes with sha256 {sha256}, expected {remote.sha256}"
        raise DataError(f"{remote.url}: {found}; try again, or {remedy}")
    return bytes(content)


def _sha256(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


class ProgressLog:
    """Logs the progress of an operation every few seconds; a short operation is not mentioned.

    Args:
        title: of the operation.
        total: the amount of work, in any unit; 0 if unknown, then nothing is logged.
    """

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._last = self._start = time.monotonic()

    def __call__(self, done: int) -> None:
        """Report the amount of work that is done."""
        now = time.monotonic()
        if self.total and (now - self._last >= _INTERVAL or (done == self.total and self._last > self._start)):
            left = (now - self._start) / max(done, 1) * (self.total - done)
            _log.info("%s: %.0f %%, %.0f s left", self.title, 100 * done / self.total, left)
            self._last = now


# --- the Hugging Face hub ---
def optional(package: str, extra: str) -> Any:
    """Import an optional package; the error says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{package} cannot be imported ({error}); pip install 'mixwise[{extra}]'") from None


def model_folder(name: str, model_dir: Folder | None = None, data_dir: Folder | None = None) -> Path:
    """Return the folder of a pretrained model with its tokenizer.

    Args:
        name: a folder, or a name as in `hub_folder`.
        model_dir: the folder itself, or one that contains a folder `name`.
        data_dir: where datasets are.
    """
    if model_dir is None:
        return hub_folder(name, "model", data_dir)
    given = Path(model_dir).expanduser()
    if not given.is_dir():
        raise DataError(f"model_dir = {given} is not a folder; give the one that contains the model's config.json")
    inside = given / Path(name).name
    return inside if inside.is_dir() and not (given / "config.json").exists() else given


def hub_folder(
    name: str, kind: Literal["model", "dataset"], data_dir: Folder | None = None, revision: str | None = None
) -> Path:
    """Return the folder of a model or dataset.

    Args:
        name: a folder; a folder in `data_dir`, `$MIXWISE_DATA` or `~/.cache/mixwise`; or a name on the hub, which is
            downloaded unless it is in the hub's own cache.
        kind: of the files.
        data_dir: where datasets are.
        revision: the commit, tag or branch on the hub; by default its main branch.
    """
    last = Path(name).name
    for place in (Path(name).expanduser(), *(data_folder(d, n) for d in (data_dir, None) for n in (name, last))):
        if os.path.isdir(place):  # unlike Path.is_dir, False for a name that is too long
            return place
    if name.startswith((".", "/", "~")):
        raise DataError(f"there is no folder {name}; give one that contains a {kind}, or a name on the hub")
    reason = _from_hub(name, kind, revision)
    if isinstance(reason, Path):
        return reason
    option = "model_dir" if kind == "model" else "name"
    options = (" --repo-type dataset" if kind == "dataset" else "") + (f" --revision {revision}" if revision else "")
    download = f"hf download {name} --local-dir DIR{options}"
    raise DataError(
        f"{kind} {name!r} is not a local folder, and cannot be downloaded from the hub ({reason}); download it "
        f"elsewhere ({download}), and put it into {data_folder(data_dir, last)} or give its folder with {option}=…"
    )


def _from_hub(name: str, kind: Literal["model", "dataset"], revision: str | None) -> Path | str:
    """Return the folder of a repository on the hub, downloaded if necessary; or why it cannot be downloaded.

    A single request with a short timeout comes first: without a connection, the hub's own client would retry for long.
    """
    extra = "text" if kind == "model" else "hub"
    hub, constants = optional("huggingface_hub", extra), optional("huggingface_hub.constants", extra)
    options = {"repo_type": kind, "revision": revision, "allow_patterns": _HUB_MODELS if kind == "model" else None}
    with quiet():
        with suppress(OSError, ValueError):  # not in the cache, or not a valid name of a repository
            return Path(hub.snapshot_download(name, local_files_only=True, **options))
        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set"
        try:
            with suppress(urllib.error.HTTPError):  # an answer, if only an error
                urllib.request.urlopen(f"{constants.ENDPOINT}/api/{kind}s/{name}", timeout=_HUB_TIMEOUT).close()
            return Path(hub.snapshot_download(name, **options))
        except (OSError, ValueError) as error:
            return _reason(error).strip().partition("\n")[0].rstrip(".")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and messages of the hub's libraries; our errors and logs say what a user must know."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def loading(failure: str, remedy: str) -> Iterator[None]:
    """Call a library of the hub without its messages; its errors, which are of any type, become a `DataError`."""
    try:
        with quiet():
            yield
    except MixwiseError:
        raise
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(f"{failure} ({reason}); {remedy}") from None
