"""Who belongs to the next generation: decided by the supervisor of machine 0 alone, from what the board tells.

report/g/r      rank r has left generation g, having come this far
ended/r         the process of rank r has ended, and how; "finished" if it was done
end/r           the supervisor of rank r shall end its process, and why
generation/g    who belongs to it
"""

from __future__ import annotations

from mixwise.network.board import Board
from mixwise.network.membership import END, Generation

FINISHED = "finished"


class Generations:
    """Watches the board; once somebody has reported a loss, finds out who is left and publishes it.

    Args:
        board: the board.
        world: how many ranks there are at the start.
        grace: seconds from the first report to the last; whoever lives and is silent for longer is ended.
    """

    def __init__(self, board: Board, world: int, grace: float) -> None:
        self.board, self.world, self.grace = board, world, grace
        self.current = Generation(0, tuple(range(world)))
        self._first_report: float | None = None  # when, in this generation
        self._events = 0  # reports seen so far

    def look(self, now: float) -> Generation | None:
        """Look at the board; the next generation, if this was the moment to publish it."""
        events = self.board.count("events")
        if events == self._events and self._first_report is None:
            return None
        self._events = events
        notes = {rank: self.board.read(f"report/{self.current.number}/{rank}") for rank in self.current.members}
        reached = {rank: tuple(at) for rank, at in notes.items() if at is not None}
        if not reached:
            return None
        if self._first_report is None:
            self._first_report = now
        ended = self.ended()
        silent = [rank for rank in self.current.members if rank not in reached and rank not in ended]
        waited = now - self._first_report
        if silent and waited < self.grace:
            return None
        for rank in silent:
            self.board.write(f"end/{rank}", f"silent for {self.grace:g} s, then ended")
        if silent and waited < self.grace + END:  # somebody whose machine is gone will never be seen to end
            return None
        for rank in silent:
            self.board.write(f"ended/{rank}", "silent, and so is its machine")
        members = tuple(rank for rank in self.current.members if rank in reached and rank not in ended)
        if not members:
            return None
        lost = {rank: how for rank, how in self.ended().items() if how != FINISHED}
        at = max(reached[rank] for rank in members)
        self.current = Generation(self.current.number + 1, members, at, lost)
        self._first_report = None
        self.board.write(f"generation/{self.current.number}", self.current.to_note())
        return self.current

    def ended(self) -> dict[int, str]:
        """All ranks whose process has ended, and how."""
        notes = {rank: self.board.read(f"ended/{rank}") for rank in range(self.world)}
        return {rank: how for rank, how in notes.items() if how is not None}
