"""What processes that gave up leave for the others, in the store: whom they missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

GRACE = 1.0  # seconds in which a process that gave up has left its note


class Notes:
    """The notes as one process sees them.

    The store may have gone with the process that is missing, and not all of its calls are bounded; so they run in
    threads, for a limited time, and what goes wrong there only makes the message less precise.
    """

    def __init__(self, prefix: str, rank: int) -> None:
        self.prefix, self.rank = prefix, rank

    def leave(self, missing: int) -> None:
        """Tell the others whom this process missed."""
        _bounded(lambda: _store().set(f"{self.prefix}/{self.rank}", str(missing)))

    def follow(self, peer: int) -> tuple[int, int | None]:
        """Who is missing in the end, if this process missed the peer; and who said so, if it was somebody else."""
        found: list[tuple[int, int | None]] = [(peer, None)]
        _bounded(lambda: self._follow(found))
        return found[-1]

    def _follow(self, found: list[tuple[int, int | None]]) -> None:
        store, seen, deadline = _store(), {self.rank}, time.monotonic() + GRACE
        while (suspect := found[-1][0]) not in seen:
            seen.add(suspect)
            key = f"{self.prefix}/{suspect}"
            if not _appears(store, key, deadline):
                return  # it left no note, so it is the one
            found.append((int(store.get(key)), suspect))


def _appears(store: Any, key: str, deadline: float) -> bool:
    """Whether a key is there, or will be in time."""
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _bounded(call: Callable[[], object]) -> None:
    def attempt() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(2 * GRACE)
