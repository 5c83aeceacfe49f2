"""Which processes are left, and how they form a new process group after a loss.

Generation g is a set of ranks. The first has all of them, and its process group is the one that the run has started
with. A survivor that notices a loss leaves the group, which closes its connections and so wakes every process that
waits for it. It reports, and the supervisor (`mixwise launch --on-loss continue`) publishes generation g + 1: the ranks
that have reported and whose process is alive. Ranks are those of the start; the rank in a later process group is the
index among the members.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from mixwise.errors import NetworkError
from mixwise.network.board import Board, until
from mixwise.network.transport import Transport

SUPERVISED, GRACE = "MIXWISE_SUPERVISED", "MIXWISE_GRACE"  # environment variables that the supervisor sets
END = 10.0  # seconds from the order to end a process to the moment when it counts as ended
_IN_VAIN = 3


@dataclass(frozen=True)
class Generation:
    """The processes that continue together."""

    number: int
    members: tuple[int, ...]  # ranks of the start, ascending
    at: tuple[int, ...] = (0,)  # the furthest progress of a member: a step, or several counters, the coarsest first
    lost: dict[int, str] = field(default_factory=dict)  # ranks lost since the start, and how

    @classmethod
    def from_note(cls, note: dict[str, Any]) -> Generation:
        """Decode JSON, which has no tuples, and keys that are strings."""
        lost = {int(rank): how for rank, how in note["lost"].items()}
        return cls(note["number"], tuple(note["members"]), tuple(note["at"]), lost)


def check_supervised() -> None:
    """Raise an error if no supervisor looks after the survivors of a loss."""
    if os.environ.get(SUPERVISED) == "1":
        return
    why = "needs a supervisor that looks after the survivors"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        why = "is not possible under torchrun, which ends the survivors when one process dies"
    raise NetworkError(f'on_loss="continue" {why}; start it with mixwise launch --on-loss continue')


class Membership:
    """This process among the others, from the start of the run on.

    Args:
        board: where the supervisor and the processes leave their notes.
        rank: of this process, at the start.
        world: how many there were at the start.
        grace: seconds that a process may be silent while the others form a new group.
    """

    def __init__(self, board: Board, rank: int, world: int, grace: float) -> None:
        self.board, self.rank, self.grace = board, rank, grace
        self.generation = Generation(0, tuple(range(world)))
        self._in_vain = 0  # generations in a row that lost no rank and came no further

    @classmethod
    def from_environment(cls) -> Membership:
        """Return the membership that the supervisor has set in the environment."""
        check_supervised()
        env, grace = os.environ, float(os.environ[GRACE])
        board = Board.at(env["MASTER_ADDR"], int(env["MASTER_PORT"]), grace)
        return cls(board, int(env["RANK"]), dist.get_world_size(), grace)

    def reform(self, at: tuple[int, ...], timeout: float, backend: str | None = "gloo") -> Generation:
        """Leave the process group, wait for the next generation, and make its process group the default one.

        Ends with a new group or with an error on every survivor; a loss on the way leads to the generation after.

        Args:
            at: the progress of this process; the generation has that of the furthest.
            timeout: seconds for the operations of the new process group.
            backend: of the new process group; None for torch's default.
        """
        while True:
            leave_at_once()
            self.board.write(f"report/{self.generation.number}/{self.rank}", at)
            self.board.count("events", 1)
            self._take_up(self._next())
            if self.rank not in self.generation.members:
                raise NetworkError(
                    f"rank {self.rank} was left out of generation {self.generation.number}: the others took it for "
                    f"lost; if it was only slow, raise the grace period (mixwise launch --grace)"
                )
            if self._connect(backend, timeout):
                return self.generation

    def _take_up(self, generation: Generation) -> None:
        """Belong to a generation; raise an error if several in a row made no progress."""
        before, self.generation = self.generation, generation
        same = (before.members, before.at) == (generation.members, generation.at)
        self._in_vain = self._in_vain + 1 if same else 0
        if self._in_vain == _IN_VAIN:
            raise NetworkError(
                f"ranks {', '.join(map(str, generation.members))} are alive, but {_IN_VAIN} groups of them made no "
                f"progress; check that they reach each other, and that no step takes longer than the timeout"
            )

    def _next(self) -> Generation:
        """Return the next generation as soon as it is published."""
        number, bound = self.generation.number + 1, self.grace + 2 * END
        late = f"rank {self.rank} has waited {bound:g} s for generation {number}; the supervisor has not formed it"
        return Generation.from_note(self.board.awaited(f"generation/{number}", bound, late))

    def _connect(self, backend: str | None, timeout: float) -> bool:
        """Make the process group of the generation, if all of its members are ready."""
        number, members = self.generation.number, self.generation.members
        self.board.write(f"ready/{number}/{self.rank}", True)
        ready = [f"ready/{number}/{rank}" for rank in members]
        until(lambda: self.board.has(*ready) or self._ended(), self.grace)
        if not self.board.has(*ready):
            return False
        try:
            dist.init_process_group(
                backend,
                store=PrefixStore(f"mixwise/group/{number}", self.board.store),
                rank=members.index(self.rank),
                world_size=len(members),
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError:  # another one is lost
            return False
        return True

    def _ended(self) -> bool:
        return any(self.board.has(f"ended/{rank}") for rank in self.generation.members)


def current_backend() -> str | None:
    """The back end of the default process group; None where it is torch's default."""
    backend = dist.get_backend() if dist.is_initialized() else "gloo"
    return None if backend == "undefined" else backend


def leave_at_once() -> None:
    """Close the connections of the default process group, so that no process waits for this one, and destroy it."""
    if not dist.is_initialized():
        return
    group = dist.group.WORLD
    assert group is not None
    for device in group._device_types:
        if device.type == "cpu":
            Transport(None, timeout=1.0).close()
        else:
            group._get_backend(device).abort()
    dist.destroy_process_group()
