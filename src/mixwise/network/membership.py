"""Which processes take part: views that their members agree on, and a process group for each view.

A thread keeps asking which processes are present (`Lighthouse.ask`). Those that take part are the members of a view.
When one is lost or joins, all others get another view: they stop waiting for messages, leave their process group, and
the members of the new view form another. Messages travel inside of a group only, a group is formed only when every
member of its view is ready for it, and its name is unique to that view: processes with different views never mix.

    starting   waits for all ranks of the run; they become members together
    joining    the others are training already: it fetches their state, then becomes a member
    member     takes part
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mixwise.errors import NetworkError
from mixwise.network.addresses import address_towards, listening_store
from mixwise.network.board import Board, bounded, until
from mixwise.network.lighthouse import QUESTION, Lighthouse, Present, torchft
from mixwise.network.survivors import listed
from mixwise.network.transport import Transport, leave_at_once, make_default_group

_log = logging.getLogger(__name__)
LIGHTHOUSES, GRACE = "MIXWISE_LIGHTHOUSES", "MIXWISE_GRACE"  # environment variables that `mixwise launch` sets
_PERIOD = 0.1  # seconds between two questions
_ANSWER = 1.0  # seconds beyond the grace period in which a process that is present answers
_TAKEN = 5.0  # seconds beyond it until a process ends whose rank another one holds, which may be about to be left out
STARTING, JOINING, MEMBER = "starting", "joining", "member"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Member:
    """What a process announces about itself."""

    rank: int
    name: str  # unlike that of an earlier process with this rank
    born: float
    host: str
    store: int  # ports, of the store for groups that it is the first of, and of its state
    state: int
    phase: str = STARTING
    groups: int = 0  # that it has left, so that no name of a group is used twice

    @classmethod
    def parsed(cls, told: dict[str, object]) -> Member | None:
        """Return the member that an announcement describes; None if it does not come from a member."""
        kinds = {"rank": int, "name": str, "born": float, "host": str, "store": int, "state": int, "phase": str}
        if {name: type(value) for name, value in told.items()} != kinds | {"groups": int}:
            return None
        return cls(**told)  # type: ignore[arg-type]


@dataclass(frozen=True)
class View:
    """The processes that take part, by ascending rank."""

    members: tuple[Member, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the members, as numbered at the start."""
        return tuple(member.rank for member in self.members)

    @property
    def name(self) -> str:
        """A name for the group of this view."""
        return blake2b(repr([(m.name, m.groups) for m in self.members]).encode(), digest_size=8).hexdigest()


class Membership:
    """This process among the others.

    Args:
        rank: of this process.
        world: how many processes start together.
        presence: makes the presence of this process known, given its name.
        host: the address at which other processes reach this one.
        grace: seconds that a process may be silent.
        timeout: the longest wait for others, in seconds.
        state: the port at which a process that joins finds the state of this one.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        presence: Callable[[str], Lighthouse],
        host: str,
        grace: float,
        timeout: float,
        state: int = 0,
    ) -> None:
        self.world, self.grace, self.timeout = world, grace, timeout
        self._store = listening_store(host, 0)
        name = f"{rank:05d}-{uuid.uuid4().hex}"
        self.me = Member(rank, name, time.time(), host, self._store.port, state)
        self.view = View()  # the newest
        self.group: View | None = None  # the one whose group this process is in
        self.board: Board | None = None  # notes of that group
        self._tried: View | None = None  # the last one whose group was to be formed
        self._begun = False  # whether its connections were made, or begun
        self._present: list[Member] = []
        self._presence = presence(name)
        self._started, self._unsure = time.monotonic(), 0.0
        self._halved: float | None = None  # since when half of the members or more are missing
        self._taken: float | None = None  # since when another process holds the rank of this one
        self._changed, self._ended = threading.Condition(), threading.Event()
        self._watch = threading.Thread(target=self._ask, name="mixwise membership", daemon=True)
        self._watch.start()
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, timeout: float, state: Callable[[str], int] = lambda host: 0) -> Membership:
        """Return the membership that `mixwise launch --on-loss continue` has set in the environment."""
        env = os.environ
        if LIGHTHOUSES not in env:
            torchft()  # raises an error if it is missing
            raise NetworkError(
                "an elastic run needs a lighthouse, by which its processes find each other; start it with "
                "mixwise launch --on-loss continue"
            )
        if dist.is_initialized():
            raise NetworkError("an elastic run makes its process groups itself; remove init_process_group")
        addresses, grace = env[LIGHTHOUSES].split(","), float(env.get(GRACE, 0.7))
        first, _, port = addresses[0].rpartition(":")
        host = address_towards(first.strip("[]"), int(port))
        rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        return cls(rank, world, lambda name: Lighthouse(addresses, name, grace), host, grace, timeout, state(host))

    def close(self) -> None:
        """Leave unannounced; the others notice after the grace period, or by the closed connections."""
        self._ended.set()
        self._presence.close()  # first: signs of life while the watch ends would delay the others
        self._watch.join()

    # --- the processes that are present: in a thread ---
    def _ask(self) -> None:
        while True:
            start = time.monotonic()
            if self._ended.wait(_PERIOD):
                return
            self._notice_stop(start, _PERIOD)
            start = time.monotonic()
            try:
                self._see(self._presence.ask(asdict(self.me)))
            except TimeoutError:
                pass
            except NetworkError:  # the members stay as they are, until all have found a new lighthouse
                self._unsure = time.monotonic() + self.grace + 10 * _PERIOD
                continue
            self._notice_stop(start, QUESTION)

    def _notice_stop(self, start: float, usual: float) -> None:
        """If this process was stopped, let one that was started in its place be the older of the two."""
        if time.monotonic() > start + usual + self.grace + _ANSWER:
            self.me = replace(self.me, born=time.time())

    def _see(self, present: Present) -> None:
        """Take up an answer; members that have seen the same answer do the same."""
        found = [member for member in map(Member.parsed, present) if member and 0 <= member.rank < self.world]
        found.sort(key=lambda member: (member.rank, -member.born))
        holders = {member.rank: member for member in found}  # of those with one rank, the oldest
        members = {member.rank: member for member in found if member.phase == MEMBER}
        view = View(tuple(members.values()))
        with self._changed:
            self._present = list(holders.values())
            held = holders.get(self.me.rank, self.me).name != self.me.name
            self._taken = (self._taken or time.monotonic()) if held else None
            if self.me.phase == STARTING and not held:
                self._leave_start(holders, bool(members))
            if view.members and self._is_credible(view):
                if self._begun and view != self._tried:  # all of its members see this answer, and count at once
                    self._count_group()
                self.view = view
            self._changed.notify_all()

    def _is_credible(self, view: View) -> bool:
        """Whether the members that a view lacks are lost; they are not if it is the lighthouse that was.

        A new lighthouse may not have heard of all members, and one that was stopped may have forgotten them; those
        of several lighthouses may be two parts of a broken network.
        """
        now, gone = time.monotonic(), len(set(self.view.ranks) - set(view.ranks))
        if 2 * gone < max(1, len(self.view.members)):
            self._halved = None
            return not gone or now >= self._unsure
        self._halved = self._halved or now
        return not self._presence.contested and now >= max(self._unsure, self._halved + self.grace)

    def _leave_start(self, present: dict[int, Member], others_train: bool) -> None:
        late = time.monotonic() - self._started > self.timeout
        enough = 2 * len(present) > self.world or not self._presence.contested
        if others_train:
            self.me = replace(self.me, phase=JOINING)
        elif len(present) == self.world or (late and enough):
            self.me = replace(self.me, phase=MEMBER)
            self.view = View(tuple(replace(member, phase=MEMBER) for member in present.values()))  # all see this answer

    def _count_group(self) -> None:
        self._begun, self.me = False, replace(self.me, groups=self.me.groups + 1)

    @property
    def has_changed(self) -> bool:
        """Whether the group is to be left, since there is another view."""
        return self.view != self.group

    # --- groups: in the main thread ---
    def await_start(self) -> bool:
        """Wait until all ranks are present; whether the others train already, so that this process joins them."""
        if not self._until(lambda: self.me.phase != STARTING, 2 * self.timeout):
            missing = set(range(self.world)) - {member.rank for member in self._present}
            raise NetworkError(
                f"rank {self.me.rank} has waited {2 * self.timeout:g} s for the others (missing: {sorted(missing)}); "
                f"check that they were started, and that they reach {os.environ.get(LIGHTHOUSES)}"
            )
        return self.me.phase == JOINING

    def be(self, phase: str) -> None:
        """Tell the others that this process joins, or has joined."""
        self.me = replace(self.me, phase=phase)

    @property
    def others(self) -> list[Member]:
        """The other members that are present."""
        return [member for member in self._present if member.phase == MEMBER and member.rank != self.me.rank]

    def connect(self, backend: str = "gloo", patient: bool = False) -> View:
        """Leave the process group, if there is one, and form that of the newest view; make it the default group.

        Without `patient`, the members of a view have twice the timeout to meet.
        """
        first, ranks = 0.0, View().ranks
        while True:
            leave_at_once()
            with self._changed:
                self.group = None
                if self._tried == self.view:  # it failed, but its members are present: again, under another name
                    self._count_group()
            view = self._tried = self._next()
            now = time.monotonic()
            if view.ranks != ranks:
                first, ranks = now, view.ranks
            try:
                self._form(view, backend, max(self.grace + _ANSWER, now - first))  # slow ranks meet in the end
            except (NetworkError, RuntimeError, TimeoutError) as error:  # another one is lost, or has joined
                if patient and time.monotonic() > now + self.timeout / 2:
                    others = listed([rank for rank in view.ranks if rank != self.me.rank])
                    _log.warning("rank %d waits until ranks %s call gossip.step(), to join them", self.me.rank, others)
                elif not patient and time.monotonic() > first + 2 * self.timeout:
                    raise NetworkError(f"rank {self.me.rank} cannot connect to ranks {view.ranks}: {error}") from None
            else:
                self.group = view
                return view

    def _next(self) -> View:
        """Return the newest view, which has this process as it is now."""
        view = self._until(lambda: self.view if self.me in self.view.members else None, self.timeout)
        if view is None:
            raise NetworkError(
                f"rank {self.me.rank} has waited {self.timeout:g} s for the other members of the run; no "
                f"lighthouse answers at {os.environ.get(LIGHTHOUSES)}, or it does not count this process among them"
            )
        return view

    def _form(self, view: View, backend: str, answer: float) -> None:
        """Meet the members of a view and connect to them, one after the other; each answers within so many seconds.

        Gloo waits five times its timeout for a connection, and nothing ends that wait: a member that left in this
        moment would cost the others as much. So a thread waits, and is left behind when there is another view. Nor
        must it hold a store that the next attempt needs, hence a connection to the store for each attempt.
        """
        first, place, n = view.members[0], view.ranks.index(self.me.rank), len(view.members)
        store = TCPStore(first.host, first.store, timeout=timedelta(seconds=1), wait_for_workers=False)
        patience = timedelta(seconds=answer)
        store.set_timeout(patience)
        notes, group = PrefixStore(view.name, store), PrefixStore(f"{view.name}/group", store)
        self.board = board = Board(notes, answer=self.grace + _ANSWER)
        board.write(f"ready/{place}", True)
        ready = [f"ready/{other}" for other in range(n)]
        if not until(lambda: board.has(*ready) or self.view != view, self.timeout):
            raise NetworkError(f"not all of ranks {view.ranks} were ready within {self.timeout:g} s")
        with self._changed:
            if self.view != view:
                raise NetworkError("there is a newer view")
            self._begun = True
        made = bounded(lambda: dist.ProcessGroupGloo(group, place, n, patience), n * answer, lambda: self.view != view)
        make_default_group(made, backend, notes, self.timeout)

    def progress(self, at: Sequence[int]) -> list[list[int]]:
        """Exchange numbers with all members of the group: how far each has come."""
        transport = Transport(None, self.timeout, lambda: self.has_changed)
        return transport.gather(torch.tensor([list(at)]), "meeting").tolist()

    def _until(self, found: Callable[[], Value], seconds: float) -> Value:
        """Return what is found as soon as it is true, or what is found after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: found() or self._is_taken, seconds)
            if self._is_taken or (self._taken is not None and not found()):
                raise NetworkError(
                    f"another process holds rank {self.me.rank}, so this one ends; every rank is started once, and "
                    f"again only when it is lost"
                )
            return found()

    @property
    def _is_taken(self) -> bool:
        return self._taken is not None and time.monotonic() > self._taken + self.grace + _TAKEN
