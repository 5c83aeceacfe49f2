"""A start that all processes refuse: one sentence, once and last, in place of a traceback for each of them.

Under `mixwise launch`, a process writes the sentence where torchrun looks for it, and the launcher prints it after
everything else. torchrun by itself shows it in its report of failed processes, and rank 0 prints it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec

from mixwise.errors import MixwiseError, NetworkError

REPORTS = "MIXWISE_REPORTS"  # an environment variable: the number of the process that prints what its children refuse
_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the error of a process
Arguments = ParamSpec("Arguments")


def refuses(start: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Let a function that starts something in several processes end them with one sentence, if nothing catches it.

    A process of an elastic run starts by itself, and prints the sentence by itself.
    """

    @functools.wraps(start)
    def wrapped(*args: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            start(*args, **options)
        except MixwiseError as error:
            rank = os.environ.get("RANK")
            if rank is not None and not isinstance(error, NetworkError):
                _show_alone(error, prints=rank == "0" or bool(options.get("elastic")))
            raise

    return wrapped


def told_launcher(sentence: str) -> bool:
    """Leave the reason why this process ends for its launcher; return whether the launcher prints it."""
    if file := os.environ.get(_FILE):
        told = {"message": sentence, "extraInfo": {"py_callstack": sentence, "timestamp": str(int(time.time()))}}
        with suppress(OSError), open(file, "w", encoding="utf-8") as to:  # without it, torchrun has no reason to show
            json.dump({"message": told, REPORTS: sentence}, to)
            return os.environ.get(REPORTS) == str(os.getppid())
    return False


def refusal_in(told: dict[str, Any]) -> str | None:
    """Return the sentence in what a process has left for its launcher, if there is one."""
    return told.get(REPORTS)


def _show_alone(error: MixwiseError, prints: bool) -> None:
    """Print one line in place of the traceback, if this error ends the program; nothing if another process prints."""
    show = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not error:
            show(kind, value, trace)
        elif not told_launcher(str(error)) and prints:
            print(f"error: {error}", file=sys.stderr)

    sys.excepthook = hook
