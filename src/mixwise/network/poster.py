"""A thread that hands messages over, while whoever has something to compute goes on with it.

Gloo holds a lock while it takes a message, and its own thread spins on that lock if the peer answers at once. Handing
over wakes others, and the first to be taken off the processor for them is a thread that computed all the time: with
more processes than cores it lost a millisecond there, lock in hand. A thread that mostly sleeps stays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

_Jobs: TypeAlias = "SimpleQueue[tuple[Callable[[], None], threading.Lock] | None]"


class Poster:
    """Does one job after the other; it ends when nobody holds it any more."""

    def __init__(self) -> None:
        self._jobs: _Jobs = SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        threading.Thread(target=_work, args=(self._jobs,), name="mixwise poster", daemon=True).start()

    def hand(self, job: Callable[[], None]) -> threading.Lock:
        """Have it done soon; the lock is free when it is. A job keeps its errors to itself."""
        done = threading.Lock()
        done.acquire()
        self._jobs.put((job, done))
        return done


def _work(jobs: _Jobs) -> None:
    while (task := jobs.get()) is not None:
        job, done = task
        try:
            job()
        finally:
            done.release()
        del task, job, done  # their tensors are not ours
