"""The processes that one supervisor starts: their output, how they ended, and that none outlives it."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, BinaryIO

from mixwise.launch.generations import FINISHED

_PDEATHSIG = 1  # prctl: the signal to get when the parent dies
_PATIENCE = 10.0  # seconds from asking a process to end to ending it


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
    """All processes of this machine.

    Args:
        ranks: of the processes.
        command: what each of them runs.
        environment: of all; RANK and LOCAL_RANK are added.
    """

    def __init__(self, ranks: range, command: Sequence[str], environment: dict[str, str]) -> None:
        self._lines = _Lines()
        self._workers: list[Worker] = []
        try:
            for local, rank in enumerate(ranks):
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(local)}
                worker = Worker(rank, command, own)
                self._workers.append(worker)
                self._lines.add(worker.process.stdout, f"[{rank}] ", sys.stdout.buffer)
                self._lines.add(worker.process.stderr, f"[{rank}] ", sys.stderr.buffer)
        except BaseException:
            self.end()
            raise

    def forward(self, seconds: float) -> None:
        """Pass on what the processes print, line by line with their rank, for about this long."""
        self._lines.forward(seconds)

    def ended(self) -> dict[int, str]:
        """The ranks whose process has ended, and how."""
        ways = {worker.rank: worker.how_ended() for worker in self._workers}
        return {rank: how for rank, how in ways.items() if how is not None}

    @property
    def living(self) -> list[Worker]:
        """Those that have not ended."""
        return [worker for worker in self._workers if worker.process.poll() is None]

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask all to end, and end those that do not within 10 seconds."""
        last = time.monotonic() + _PATIENCE
        for worker in self.living:
            worker.end(number)
        while self.living and time.monotonic() < last:
            self.forward(0.05)
        for worker in self.living:
            worker.end()
        for worker in self._workers:
            worker.process.wait()
        self._lines.close()


class _Lines:
    """Output of several processes, passed on in whole lines, each with a prefix."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, source: IO[bytes] | None, prefix: str, target: BinaryIO) -> None:
        assert source is not None
        os.set_blocking(source.fileno(), False)
        self._selector.register(source, selectors.EVENT_READ, (prefix.encode(), target, bytearray()))

    def forward(self, seconds: float) -> None:
        if not self._selector.get_map():
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds):
            self._pass_on(key)

    def close(self) -> None:
        """Pass on what is there; a process that somebody left behind may hold a pipe open, so do not wait for more."""
        for key in list(self._selector.get_map().values()):
            self._pass_on(key, to_the_end=True)
        self._selector.close()

    def _pass_on(self, key: selectors.SelectorKey, to_the_end: bool = False) -> None:
        prefix, target, rest = key.data
        source: IO[bytes] = key.fileobj  # type: ignore[assignment]
        while True:
            part = source.read(1 << 16)
            rest += part or b""
            if not part or not to_the_end:
                break
        ended = part == b""
        lines = rest.splitlines(keepends=True)
        rest.clear()
        if lines and not lines[-1].endswith((b"\n", b"\r")) and not (ended or to_the_end):
            rest += lines.pop()
        for line in lines:
            target.write(prefix + line.rstrip(b"\r\n") + b"\n")
        target.flush()
        if ended:
            self._selector.unregister(source)
            source.close()


def _die_with_parent() -> None:
    """In the child, before it becomes the worker: be killed when the supervisor is gone, however it went."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
