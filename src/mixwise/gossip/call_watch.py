"""Why a rank waits: calls that not all ranks make, a rank that has finished, or one that is busy elsewhere.

All ranks make the same collective calls in the same order, and each remembers the last of its own. If the next one does
not follow soon, a thread publishes them in the store, with the line of the program that the rank has reached. A rank
inside a call compares them: two ranks whose k-th calls differ can never meet. That remains true whatever a rank does
later, so a slow rank is never accused. A call that is not late costs one entry in a list.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, TypeAlias, TypeVar, cast
from weakref import ReferenceType, WeakSet, ref

import torch.distributed as dist

from mixwise.errors import MixwiseError, NetworkError
from mixwise.gossip.caller import GOSSIP, line_of
from mixwise.network.board import Board
from mixwise.network.transport import Transport

_TICK, _LATE, _RARELY = 0.5, 1.5, 5.0  # seconds between looks; until a call is late; between looks at a long wait
_KEPT = 64  # calls that are remembered: neighbors may be that far ahead
_STEP, _BESIDE_MIXING = "step()", ("metrics()", "average()", "load_state_dict()")
_JOIN = "if ranks have different numbers of batches, put the loop into `with gossip.join():`"

Method = TypeVar("Method", bound=Callable[..., Any])
Status: TypeAlias = Mapping[str, Any]
"""Of a rank: `calls`, pairs of a number and a call; `place`, such as "train.py:31"; `error`, that of mixwise which has
ended the last call; `end`, how it ended if it has."""


class CallWatch:
    """The collective calls of this rank, and a thread that compares them with those of others when one is late."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self._rank = transport, transport.name(transport.rank)
        self._calls: deque[tuple[int, str]] = deque([(0, "Gossip()")], _KEPT)
        self._thread = threading.get_ident()
        self._board = Board(dist.distributed_c10d._get_default_store(), "the store", 5.0)
        self._notes = f"{transport.notes}/calls"
        self._seen, self._since, self._next, self._error = self._calls[-1], 0.0, 0.0, ""
        with suppress(NetworkError):  # without it no calls are compared
            self._publish()
        transport.explain = self.explain
        self._stop = threading.Event()
        self._looking = threading.Thread(target=_look_often, args=(ref(self), self._stop), daemon=True)
        self._looking.start()
        _watches.add(self)

    def note(self, call: str) -> None:
        """Remember a collective call, which begins now."""
        self._calls.append((self._calls[-1][0] + 1, call))
        if self._error:
            self.fail("")

    def fail(self, error: str) -> None:
        """Tell the others why this rank may not make the next call; "" if it does make it."""
        if error != self._error and not self._transport.failed:
            self._error = error
            with suppress(NetworkError):  # the store may be gone
                self._publish()

    # --- in the thread ---
    def look(self) -> bool:
        """Publish the calls of this rank if the next one is late; return whether another look is useful."""
        now, last = time.monotonic(), self._calls[-1]
        if not dist.is_initialized() or dist.distributed_c10d._get_default_store() is not self._board.store:
            if not self._transport.failed:
                self._publish("left the process group")
            return False
        if last is not self._seen:
            self._seen, self._since, self._next = last, now, now + _LATE
        if now < self._next:
            return True
        self._next = now + min((now - self._since) / 2, _RARELY)
        self._publish()
        return not self._inside() or self._fits()

    def _fits(self) -> bool:
        """Whether this rank can keep waiting; if not, end its wait."""
        ranks = range(self._transport.world)
        names = [f"{self._notes}/{self._transport.name(rank)}" for rank in ranks]
        if not self._board.has(*names):
            return True
        told = self._board.store.multi_get([f"mixwise/{name}" for name in names])
        found = difference({self._transport.name(rank): json.loads(told[rank]) for rank in ranks})
        if found is not None:
            self._board.write(f"{self._notes}/found", found)
            self._transport.close()
        return found is None

    def _publish(self, end: str = "") -> None:
        self._board.write(f"{self._notes}/{self._rank}", self._status(end))

    def _status(self, end: str = "") -> Status:
        place = line_of(self._frame())
        return {"calls": list(self._calls.copy()), "place": place, "error": self._error, "end": end}

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)

    def _inside(self) -> bool:
        frame = self._frame()
        while frame is not None and os.path.dirname(frame.f_code.co_filename) != GOSSIP:
            frame = frame.f_back
        return frame is not None

    # --- afterwards ---
    def explain(self, missing: int, what: str) -> str:
        """Return what is known about a rank that did not answer, or else `what`."""
        found: str | None = self._board.read(f"{self._notes}/found")
        status: Status | None = self._board.read(f"{self._notes}/{missing}")
        if found is None and status is not None and missing != self._rank and status["error"]:
            found = _stopped(missing, status)
        elif found is None and status is not None and missing != self._rank:
            found = difference({missing: status, self._rank: self._status()})
            if found is None and "did not answer" in what and status["place"]:
                hint = f"; {_JOIN}" if self._calls[-1][1] == _STEP else ""
                found = f"{what}; it was last seen at {status['place']}, after {_made(status)}{hint}"
        return found or what

    def leave(self) -> None:
        """Stop the thread, and tell the others how the program ends, unless by an error that is none of mixwise."""
        self._stop.set()
        self._looking.join(2.0)
        fails = hasattr(sys, "last_value")  # the exception that ends a program
        if not self._transport.failed and (self._error or not fails):
            with suppress(NetworkError):  # the store may be gone
                self._publish("finished")


class NoWatch:
    """What stands for the watch without other processes."""

    def note(self, call: str) -> None:
        """Do nothing."""

    def fail(self, error: str) -> None:
        """Do nothing."""


def watched(transport: Transport | None) -> CallWatch | NoWatch:
    """Return the watch of a rank; one that does nothing without other processes."""
    return NoWatch() if transport is None else CallWatch(transport)


def reports(method: Method) -> Method:
    """Let a method of a `Gossip` tell the other ranks of an error of mixwise that ends it, even if it is caught."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except MixwiseError as error:
            self.watch.fail(str(error))
            raise

    return cast(Method, wrapped)


def difference(told: Mapping[int, Status]) -> str | None:
    """Return which ranks make different calls, and a remedy, given the status by rank; None if the known calls agree.

    >>> rank_0 = {"calls": [(7, "step()"), (8, "metrics()")], "place": "train.py:31", "error": "", "end": ""}
    >>> rank_1 = {"calls": [(7, "step()"), (8, "step()")], "place": "train.py:25", "error": "", "end": ""}
    >>> print(difference({0: rank_0, 1: rank_1}).partition(";")[0])
    rank 0 calls gossip.metrics() (train.py:31) while rank 1 calls gossip.step() (train.py:25)
    """
    for rank, status in told.items():
        if status["end"] and status["error"]:
            return _stopped(rank, status)
    calls = {rank: dict(status["calls"]) for rank, status in told.items()}
    for rank, status in told.items():
        if status["end"]:  # in place of a next call
            calls[rank][max(calls[rank]) + 1] = f"{status['end']} after {_made(status)}"
    for number in sorted(set().union(*calls.values())):
        callers: dict[str, list[int]] = {}
        for rank, made in calls.items():
            if number in made:
                callers.setdefault(made[number], []).append(rank)
        if len(callers) > 1:
            odd = sorted(callers, key=lambda call: (len(callers[call]), call == _STEP))  # the fewest ranks first
            current = {call: [told[r]["place"] for r in callers[call] if max(calls[r]) == number] for call in odd}
            found = " while ".join(_phrase(call, callers[call], current[call]) for call in odd)
            lonely = [f": take gossip.{call} out of the `if`" for call in odd if call in _BESIDE_MIXING]
            remedy = "".join(lonely[:1]) + (f"; {_JOIN}" if _STEP in odd else "")
            return f"{found}; every rank must make the same calls in the same order{remedy}"
    return None


def _stopped(rank: int, status: Status) -> str:
    return f"rank {rank} has stopped with an error: {status['error']}"


def _phrase(call: str, ranks: list[int], places: list[str]) -> str:
    """Which ranks make the call, and where; or how they have ended."""
    named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    if not call.endswith("()"):
        return f"{named} {'has' if len(ranks) == 1 else 'have'} {call}"
    known = ", ".join(sorted({place for place in places if place}))
    return f"{named} call{'s' * (len(ranks) == 1)} gossip.{call}{f' ({known})' if known else ''}"


def _made(status: Status) -> str:
    return f"{status['calls'][-1][0]} collective calls"


_watches: WeakSet[CallWatch] = WeakSet()


def _look_often(watch: ReferenceType[CallWatch], stop: threading.Event) -> None:
    with suppress(NetworkError, RuntimeError):  # the store is gone
        while not stop.wait(_TICK) and (found := watch()) is not None and found.look():
            del found


@atexit.register
def _leave() -> None:
    for watch in list(_watches):
        watch.leave()
