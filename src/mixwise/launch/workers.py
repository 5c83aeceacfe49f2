"""The processes that one supervisor starts: their output, how they ended, and that none outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

FINISHED = "finished"
_PDEATHSIG = 1  # prctl: the signal to get when the parent dies
_PATIENCE = 10.0  # seconds from asking a process to end to ending it
_LAST_WORDS = 1.0  # seconds that output is awaited after the end; a process left behind may hold a pipe open


class Worker:
    """One process, in a process group of its own, so that what it starts ends with it."""

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
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self.reason: str | None = None  # why we ended it, if we did

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

    def end(self, number: signal.Signals = signal.SIGKILL, reason: str | None = None) -> None:
        """Send a signal to the process and to all that it has started."""
        if self.process.poll() is None:
            self.reason = reason or self.reason
            os.killpg(self.process.pid, number)


class Workers:
    """All processes of this machine; their output is passed on line by line, with their rank.

    Args:
        ranks: of the processes.
        command: of each of them.
        environment: of all; RANK and LOCAL_RANK are added.
    """

    def __init__(self, ranks: range, command: Sequence[str], environment: dict[str, str]) -> None:
        self._workers: list[Worker] = []
        self._readers: list[threading.Thread] = []
        try:
            for local, rank in enumerate(ranks):
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(local)}
                self._workers.append(Worker(rank, command, own))
            for worker in self._workers:  # after the last fork, which must not happen beside other threads
                for pipe, to in ((worker.process.stdout, sys.stdout), (worker.process.stderr, sys.stderr)):
                    arguments = pipe, f"[{worker.rank}] ", to.buffer
                    self._readers.append(threading.Thread(target=_pass_on, args=arguments, daemon=True))
                    self._readers[-1].start()
        except BaseException:
            self.end()
            raise

    def ended(self) -> dict[int, str]:
        """The ranks whose process has ended, and how."""
        ways = {worker.rank: worker.how_ended() for worker in self._workers}
        return {rank: how for rank, how in ways.items() if how is not None}

    @property
    def living(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self._workers if worker.process.poll() is None]

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask all to end, and kill those that do not within 10 seconds."""
        last = time.monotonic() + _PATIENCE
        for worker in self.living:
            worker.end(number)
        while self.living and time.monotonic() < last:
            time.sleep(0.05)
        for worker in self.living:
            worker.end()
        for worker in self._workers:
            worker.process.wait()
        last = time.monotonic() + _LAST_WORDS
        for reader in self._readers:
            reader.join(max(0.0, last - time.monotonic()))


def _pass_on(source: IO[str], prefix: str, target: IO[bytes]) -> None:
    with source:
        for line in source:
            target.write((prefix + line.removesuffix("\n") + "\n").encode("utf-8", "surrogateescape"))
            target.flush()


def _die_with_parent() -> None:
    """In the child, before it becomes the worker: be killed when the supervisor is gone, however it went."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
