"""Models and data sets of the Hugging Face hub: a folder here, or a name there that becomes a folder here.

Whatever is loaded afterwards is loaded from a folder: a machine without a connection does the same as any other.
"""

from __future__ import annotations

import importlib
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mixwise.data.files import Folder, data_folder
from mixwise.errors import ConfigError, DataError

_TIMEOUT = 10.0  # seconds for the one question whether the hub can be reached
_TALKATIVE = ("huggingface_hub", "transformers", "datasets")
_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bpe"]  # no weights that only a pickle loader reads


def optional(package: str, extra: str) -> Any:
    """A package that only some need; what to install if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{package} cannot be imported ({error}); pip install 'mixwise[{extra}]'") from None


def model_folder(name: str, model_dir: Folder | None = None, data_dir: Folder | None = None) -> Path:
    """The folder of a pretrained model with its tokenizer.

    Args:
        name: a folder; a folder below `data_dir`, `$MIXWISE_DATA` or `~/.cache/mixwise`; or a name on the hub, from
            where it is downloaded if it is not in the hub's own cache.
        model_dir: the folder itself, or one that holds a folder `name`.
        data_dir: where data sets lie.
    """
    last = name.rstrip("/").rpartition("/")[2]
    if model_dir is not None:
        given = Path(model_dir).expanduser()
        if not given.is_dir():
            raise DataError(f"model_dir = {given} is not a folder; give the one that holds the model's config.json")
        inside = given / last
        return inside if inside.is_dir() and not (given / "config.json").exists() else given
    if (found := folder_named(name, last, data_dir, "give the one that holds the model's config.json")) is not None:
        return found
    return repository(name, "model", f"put it into {data_folder(data_dir, last)}, or give its folder with model_dir=…")


def folder_named(name: str, below: str, data_dir: Folder | None, remedy: str) -> Path | None:
    """The folder `name`, or `below` where data sets lie; None if it can only be a name on the hub."""
    for place in (Path(name).expanduser(), data_folder(data_dir, below), data_folder(None, below)):
        if place.is_dir():
            return place
    if name.startswith((".", "/", "~")):
        raise DataError(f"there is no folder {name}; {remedy}")
    return None


def repository(name: str, kind: Literal["model", "dataset"], remedy: str) -> Path:
    """The folder with the files of a repository on the hub, downloaded if it is not there.

    One question, answered within seconds or not at all, comes first: without a connection the hub's own client would
    try again and again.
    """
    extra = "text" if kind == "model" else "hub"
    hub, constants = optional("huggingface_hub", extra), optional("huggingface_hub.constants", extra)
    patterns = _PATTERNS if kind == "model" else None
    with quiet():
        try:
            return Path(hub.snapshot_download(name, repo_type=kind, allow_patterns=patterns, local_files_only=True))
        except (OSError, ValueError):  # not there, or not a name that a repository can have
            pass
        reason = _unreachable(f"{constants.ENDPOINT}/api/{kind}s/{name}", constants.HF_HUB_OFFLINE)
        if reason is None:
            try:
                return Path(hub.snapshot_download(name, repo_type=kind, allow_patterns=patterns))
            except (OSError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
    download = f"hf download {name} --local-dir DIR" + (" --repo-type dataset" if kind == "dataset" else "")
    raise DataError(
        f"{kind} {name!r} is no folder here, and the hub does not give it ({reason}); "
        f"download it where there is a connection ({download}) and {remedy}"
    )


def _unreachable(url: str, offline: bool) -> str | None:
    """Why the hub does not answer; None if it does, be it with an error of its own."""
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
    """Without the bars and reports of the hub's libraries: what a user must know, our errors and notes say."""
    found = [importlib.import_module(f"{name}.utils.logging") for name in _TALKATIVE if name in sys.modules]
    levels = [(logger, logger.get_verbosity()) for logger in found]
    bars = importlib.import_module("huggingface_hub.utils.tqdm")
    shown = not bars.are_progress_bars_disabled()
    more = [logger for logger in found if getattr(logger, "is_progress_bar_enabled", lambda: False)()]
    try:
        for logger in found:
            logger.set_verbosity_error()
        for logger in more:
            logger.disable_progress_bar()
        if shown:
            bars.disable_progress_bars()
        yield
    finally:
        for logger, level in levels:
            logger.set_verbosity(level)
        for logger in more:
            logger.enable_progress_bar()
        if shown:
            bars.enable_progress_bars()
