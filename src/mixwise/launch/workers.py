"""A process that a supervisor starts: its output, how it ended, and that it does not outlive the supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

import psutil

FINISHED = "finished"
_PDEATHSIG = 1  # prctl: the signal to get when the parent dies
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: a fork beside other threads must not
_LAST_WORDS = 1.0  # seconds that output is awaited after the end; a process left behind may hold a pipe open


class Worker:
    """One process, in a process group of its own, so that what it starts ends with it.

    Its output is passed on line by line, with its rank.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: dict[str, str]) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            process_group=0,
            preexec_fn=die_with_parent,
        )
        self.reason: str | None = None  # why we ended it, if we did
        self._readers = [
            threading.Thread(target=_pass_on, args=(pipe, f"[{rank}] ", to.buffer), daemon=True)
            for pipe, to in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def how_ended(self) -> str | None:
        """How it ended, in words; None while it lives."""
        code = self.process.poll()
        if code is None:
            return None
        if self.reason is not None:
            return self.reason
        if code == 0:
            return FINISHED
        return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.process.poll() is None and psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self, number: signal.Signals = signal.SIGKILL, reason: str | None = None) -> None:
        """Send a signal to the process and to all that it has started."""
        if self.process.poll() is None:
            self.reason = reason or self.reason
            os.killpg(self.process.pid, number)

    def read_all(self) -> None:
        """Wait for its end, and for the last of its output."""
        self.process.wait()
        for reader in self._readers:
            reader.join(_LAST_WORDS)


def _pass_on(source: IO[str], prefix: str, target: IO[bytes]) -> None:
    with source:
        for line in source:
            target.write((prefix + line.removesuffix("\n") + "\n").encode("utf-8", "surrogateescape"))
            target.flush()


def die_with_parent() -> None:
    """In the child, before it becomes the worker: be killed when the parent is gone, however it went."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
