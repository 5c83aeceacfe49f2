"""A board on which processes leave notes for each other: torch's store, with bounded waits and JSON values."""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from mixwise.errors import NetworkError

Value = TypeVar("Value")

_TICK = 0.02
_PARTING = 10.0  # seconds that the end of a program waits for calls that were left behind
_left_behind: WeakSet[threading.Thread] = WeakSet()


def until(true: Callable[[], object], seconds: float) -> bool:
    """Wait until `true` holds; return whether it did within so many seconds."""
    last = time.monotonic() + seconds
    while not true():
        if time.monotonic() > last:
            return False
        time.sleep(_TICK)
    return True


def bounded(call: Callable[[], Value], seconds: float, in_vain: Callable[[], bool] = lambda: False) -> Value:
    """Return the result of a call that might wait forever: it runs in a thread, which is left behind if it does.

    Raises a TimeoutError after so many seconds, or as soon as waiting is in vain.
    """
    outcomes: list[Value | Exception] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except Exception as error:
            outcomes.append(error)

    thread, last = threading.Thread(target=run, name="mixwise call", daemon=True), time.monotonic() + seconds
    thread.start()
    while not outcomes and time.monotonic() < last and not in_vain():
        thread.join(_TICK)
    if not outcomes:
        _left_behind.add(thread)
        raise TimeoutError(f"no end within {seconds:g} s")
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


@atexit.register
def _leave() -> None:
    """Wait for calls that were left behind: one that returns while Python shuts down would abort the process."""
    last = time.monotonic() + _PARTING
    for thread in list(_left_behind):
        thread.join(max(0.0, last - time.monotonic()))


class Board:
    """Notes by name, on a store that lives in another process.

    Some calls of a store whose host is silent, but not gone, would wait forever; here every call is bounded.

    Args:
        store: where the notes are kept.
        where: the name of the board in error messages.
        answer: seconds that the host may take to answer.
    """

    def __init__(self, store: Store, where: str = "the board", answer: float = 10.0) -> None:
        self.store, self.where, self.answer = store, where, answer

    @classmethod
    def at(cls, host: str, port: int, timeout: float) -> Board:
        """Connect to the board at this address."""
        where, last = f"the board at {host}:{port}", time.monotonic() + timeout
        while True:  # attempts are short: no signal is handled inside of them
            try:
                store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
                break
            except RuntimeError:
                if time.monotonic() > last:
                    raise NetworkError(
                        f"{where} did not answer within {timeout:g} s; check that mixwise launch runs on the machine "
                        f"of that address, and that the port is open"
                    ) from None
        store.set_timeout(timedelta(seconds=timeout))
        return cls(store, where)

    def write(self, name: str, value: Any) -> None:
        """Leave a note; it replaces one of the same name."""
        self.within(lambda: self.store.set(f"mixwise/{name}", json.dumps(value)))

    def read(self, name: str) -> Any:
        """Return the note, or None if there is none."""
        key = f"mixwise/{name}"
        return self.within(lambda: json.loads(self.store.get(key)) if self.store.check([key]) else None)

    def has(self, *names: str) -> bool:
        """Whether all of these notes exist."""
        return self.within(lambda: self.store.check([f"mixwise/{name}" for name in names]))

    def awaited(self, name: str, seconds: float, otherwise: str) -> Any:
        """Return the note as soon as it exists; raise an error with this text if it does not."""
        if not until(lambda: self.has(name), seconds):
            raise NetworkError(otherwise)
        return self.read(name)

    def count(self, name: str, more: int = 0) -> int:
        """Add `more` to a number that starts at 0, and return it."""
        return self.within(lambda: self.store.add(f"mixwise/{name}", more))

    def within(self, call: Callable[[], Value]) -> Value:
        """Return the result of a call of the store, or raise an error if its host does not answer."""
        try:
            return bounded(call, self.answer)
        except TimeoutError:
            how = f"did not answer for {self.answer:g} s"
        except RuntimeError:
            how = "is gone"
        raise NetworkError(f"{self.where} {how}; see what the process that hosts it wrote last")
