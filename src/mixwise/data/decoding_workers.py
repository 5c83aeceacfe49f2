"""Processes that decode images, and the threads that wait for them.

Each process runs `decoding.py` and nothing else: it is started anew (no fork of a process that has threads), reads
requests from a pipe and ends when that pipe is closed, so that none is left behind however this process ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TypeAlias

import torch

from mixwise.data import decoding
from mixwise.data.decoding import REPLY, Source
from mixwise.errors import DataError

_PIECE = 8  # images per request
_PATIENCE = 120.0  # seconds without a single image
_MOST = 16  # processes, unless asked for more
_PIPE = 1 << 20  # bytes; Linux gives 64 kB unless asked

Job: TypeAlias = "tuple[_Piece, Future[None]]"


class _Jobs(queue.SimpleQueue["Job | None"]):
    """What is to be decoded, in this order, and how much of it is done."""

    done = 0


class Decoder:
    """Decodes batches of images, here or in processes of its own; they are started when the first batch is asked for.

    Args:
        workers: how many processes; 0 decodes in this process, when a batch is needed. By default one for every core
            that this process may use, up to 16, shared with the other processes that torchrun started on this machine.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
            raise DataError(f"workers = {workers!r}; give a whole number of processes, or 0 to decode without any")
        self.workers = default_workers() if workers is None else workers
        self._jobs: _Jobs | None = None
        self._started_in = 0
        self._ends: Callable[[], object] = lambda: None

    def start(self, sources: Sequence[Source], names: Sequence[str], seeds: Sequence[int | None], size: int) -> Batch:
        """Begin to decode these images.

        Args:
            sources: paths, or the bytes of files.
            names: what to call them in messages.
            seeds: of the random crops; None for the middle.
            size: pixels per side.
        """
        pixels = torch.empty(len(sources), 3, size, size, dtype=torch.uint8)
        cuts = [slice(at, at + _PIECE) for at in range(0, len(sources), _PIECE)]
        pieces = [_Piece(sources[at], names[at], seeds[at], pixels[at]) for at in cuts]
        if self.workers == 0:
            return Batch(pixels, pieces, [], _Jobs())
        jobs = self._running()
        done: list[Future[None]] = [Future() for _ in pieces]
        for job in zip(pieces, done, strict=True):
            jobs.put(job)
        return Batch(pixels, pieces, done, jobs)

    def close(self) -> None:
        """End the processes; a new batch would start new ones."""
        self._ends()
        self._jobs = None

    def _running(self) -> _Jobs:
        if self._jobs is None or self._started_in != os.getpid():  # a fork has no threads
            jobs = _Jobs()
            workers: list[_Worker] = []
            self._ends = weakref.finalize(self, _end, workers, jobs, os.getpid())  # at exit, too
            for _ in range(self.workers):
                workers.append(_Worker(jobs))
            self._jobs, self._started_in = jobs, os.getpid()
        return self._jobs

    def __reduce__(self) -> tuple[type[Decoder], tuple[int]]:
        return Decoder, (self.workers,)  # processes are not passed on


def default_workers() -> int:
    """One for every core, up to 16, divided by the processes that torchrun has started on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    together = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(_MOST, cores // max(1, int(together) if together.isdigit() else 1)))


@dataclass(frozen=True)
class Batch:
    """Images that are being decoded, or will be when they are waited for."""

    pixels: torch.Tensor  # uint8 (b, 3, size, size)
    pieces: list[_Piece]
    done: list[Future[None]]
    jobs: _Jobs

    def wait(self) -> torch.Tensor:
        """The pixels; the first image that cannot be decoded is an error."""
        if not self.done:
            for piece in self.pieces:
                piece.decode()
        for piece, done in zip(self.pieces, self.done, strict=False):
            while not done.done():
                before = self.jobs.done
                _, waiting = wait([done], _PATIENCE)
                if waiting and self.jobs.done == before:  # those before it are not decoded either
                    raise DataError(
                        f"{piece.names[0]} or others before it were not read within {_PATIENCE:g} s; see whether their "
                        f"disk answers, or decode with workers = 0 to wait without limit"
                    )
            done.result()
        return self.pixels


@dataclass(frozen=True)
class _Piece:
    """A few images of a batch, and where their pixels go."""

    sources: Sequence[Source]
    names: Sequence[str]
    seeds: Sequence[int | None]
    pixels: torch.Tensor

    def decode(self) -> None:
        """In this process."""
        for number, (source, seed) in enumerate(zip(self.sources, self.seeds, strict=True)):
            try:
                pixels = decoding.decoded(source, self.pixels.shape[-1], seed)
            except Exception as error:
                raise self.failure(number, decoding.reason(error)) from None
            _memory(self.pixels[number])[:] = pixels

    def ask(self, requests: IO[bytes], replies: IO[bytes]) -> None:
        """In the process at the other end."""
        _send(requests, pickle.dumps((self.pixels.shape[-1], list(zip(self.sources, self.seeds, strict=True)))))
        failed, length = REPLY.unpack(_fill(replies, memoryview(bytearray(REPLY.size))))
        if failed >= 0:
            raise self.failure(failed, bytes(_fill(replies, memoryview(bytearray(length)))).decode())
        _fill(replies, _memory(self.pixels))

    def failure(self, number: int, why: str) -> DataError:
        return DataError(f"{self.names[number]} cannot be decoded: {why}; replace it, or take it out of the data")


class _Worker:
    """A process, and a thread that gives it one piece of work after the other."""

    def __init__(self, jobs: _Jobs) -> None:
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", decoding.__file__],  # -P: the files beside it are not what it imports
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for this process
            )
        except OSError as error:
            raise DataError(
                f"a process that decodes images cannot be started ({error}); take fewer workers, or workers = 0"
            ) from None
        _widen(self.process.stdout)
        self.jobs = jobs
        self.thread = threading.Thread(target=self._work, name="mixwise-decoding", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        requests, replies = self.process.stdin, self.process.stdout
        assert requests is not None
        assert replies is not None
        while (job := self.jobs.get()) is not None:
            piece, done = job
            try:
                piece.ask(requests, replies)
            except DataError as error:
                done.set_exception(error)
            except (OSError, EOFError):
                done.set_exception(self._gone(piece))
            else:
                done.set_result(None)
            self.jobs.done += 1
            del job, piece, done  # or the last batch stays in memory
        requests.close()
        self.process.wait()
        replies.close()

    def _gone(self, piece: _Piece) -> DataError:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return DataError(
            f"a process that decodes images was {how} while it read {piece.names[0]} or one of the images after it; "
            f"with workers = 0 they are decoded without such processes"
        )


def _end(workers: list[_Worker], jobs: _Jobs, started_in: int) -> None:
    """End the processes, whatever they are doing; their threads see that and end, too."""
    if os.getpid() != started_in:  # they belong to the process that this one was forked from
        return
    for worker in workers:
        worker.process.kill()
        jobs.put(None)
    for worker in workers:
        if worker.thread is not threading.current_thread():
            worker.thread.join(5)


def _memory(pixels: torch.Tensor) -> memoryview:
    return pixels.numpy().data.cast("B")


def _send(pipe: IO[bytes], message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[pipe.write(rest) :]


def _fill(pipe: IO[bytes], target: memoryview) -> memoryview:
    """Read until `target` is full."""
    rest = target
    while rest:
        count = pipe.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        rest = rest[count:]
    return target


def _widen(pipe: IO[bytes] | None) -> None:
    """A pipe that holds more, so that it is read in fewer pieces."""
    if sys.platform == "linux" and pipe is not None:
        import fcntl

        with suppress(OSError):  # where the system allows less
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
