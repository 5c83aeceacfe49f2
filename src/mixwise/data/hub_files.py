"""Models and datasets of the Hugging Face hub: a local folder, or a name on the hub that is downloaded to a folder.

Everything is then loaded from a folder, so that a machine without a connection behaves like any other.
"""

from __future__ import annotations

import importlib
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from mixwise.data.files import Folder, data_folder
from mixwise.errors import ConfigError, DataError

_TIMEOUT = 10.0  # seconds to find out whether the hub can be reached
_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bpe"]  # no weights that need a pickle loader


def optional(package: str, extra: str) -> Any:
    """Import an optional package; the error says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{package} cannot be imported ({error}); pip install 'mixwise[{extra}]'") from None


def model_folder(name: str, model_dir: Folder | None = None, data_dir: Folder | None = None) -> Path:
    """Return the folder of a pretrained model with its tokenizer.

    Args:
        name: a folder; a folder in `data_dir`, `$MIXWISE_DATA` or `~/.cache/mixwise`; or a name on the hub, which is
            downloaded unless it is in the hub's own cache.
        model_dir: the folder itself, or one that contains a folder `name`.
        data_dir: where datasets are.
    """
    last = name.rstrip("/").rpartition("/")[2]
    if model_dir is not None:
        given = Path(model_dir).expanduser()
        if not given.is_dir():
            raise DataError(f"model_dir = {given} is not a folder; give the one that contains the model's config.json")
        inside = given / last
        return inside if inside.is_dir() and not (given / "config.json").exists() else given
    if (found := folder_named(name, last, data_dir, "give the one that contains the model's config.json")) is not None:
        return found
    return repository(name, "model", f"put it into {data_folder(data_dir, last)}, or give its folder with model_dir=…")


def folder_named(name: str, below: str, data_dir: Folder | None, remedy: str) -> Path | None:
    """Return the folder `name`, or `below` where datasets are; None if it can only be a name on the hub."""
    for place in (Path(name).expanduser(), data_folder(data_dir, below), data_folder(None, below)):
        if place.is_dir():
            return place
    if name.startswith((".", "/", "~")):
        raise DataError(f"there is no folder {name}; {remedy}")
    return None


def repository(name: str, kind: Literal["model", "dataset"], remedy: str) -> Path:
    """Return the folder with the files of a repository on the hub, downloaded if necessary.

    A single request with a short timeout comes first: without a connection, the hub's own client would retry for long.
    """
    extra = "text" if kind == "model" else "hub"
    hub, constants = optional("huggingface_hub", extra), optional("huggingface_hub.constants", extra)
    options = {"repo_type": kind, "allow_patterns": _PATTERNS if kind == "model" else None}
    with quiet():
        try:
            return Path(hub.snapshot_download(name, local_files_only=True, **options))
        except (OSError, ValueError):  # not in the cache, or not a valid name of a repository
            pass
        reason = _unreachable(f"{constants.ENDPOINT}/api/{kind}s/{name}", constants.HF_HUB_OFFLINE)
        if reason is None:
            try:
                return Path(hub.snapshot_download(name, **options))
            except (OSError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
    download = f"hf download {name} --local-dir DIR" + (" --repo-type dataset" if kind == "dataset" else "")
    raise DataError(
        f"{kind} {name!r} is not a local folder, and cannot be downloaded from the hub ({reason}); "
        f"download it on a machine with a connection ({download}) and {remedy}"
    )


def _unreachable(url: str, offline: bool) -> str | None:
    """Return why the hub cannot be reached; None if it answers, even with an error."""
    if offline:
        return "HF_HUB_OFFLINE is set"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT):
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return str(getattr(error, "reason", None) or error)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and messages of the hub's libraries; our errors and logs say what a user must know."""
    with ExitStack() as restore:
        for name in {"huggingface_hub", "transformers", "datasets"} & sys.modules.keys():
            logging = importlib.import_module(f"{name}.utils.logging")
            restore.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            if name != "huggingface_hub" and logging.is_progress_bar_enabled():
                restore.callback(logging.enable_progress_bar)
                logging.disable_progress_bar()
        bars = importlib.import_module("huggingface_hub.utils.tqdm")
        if not bars.are_progress_bars_disabled():
            restore.callback(bars.enable_progress_bars)
            bars.disable_progress_bars()
        yield
