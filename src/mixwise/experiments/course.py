"""Where the processes of an experiment are, so that those that are left after a loss go on at the same point.

An experiment has stages: the checks, then one run after the other. A run has steps. Processes may have come to
different points when they notice a loss; all go on at the farthest. Whoever was still at the end of a stage leaves it
as it is.
"""

from __future__ import annotations

from mixwise.errors import NetworkError
from mixwise.network import block
from mixwise.network.world import World


class Course:
    """The way of one process through an experiment.

    Attributes:
        world: the processes that are there.
        stage, t: where to go on.
        crew: the processes that have begun the stage, by their rank at the start of all.
        names: the nodes that the stage has begun with; None while that is unknown.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage, self.t = -1, 0
        self.crew = world.members
        self.names: list[int] | None = None

    def begin(self, stage: int) -> bool:
        """Whether a stage is still to be done: others may have been beyond it when somebody was lost."""
        if stage > self.stage:
            self.stage, self.t, self.crew, self.names = stage, 0, self.world.members, None
        return stage == self.stage

    def lose(self, error: NetworkError, stage: int, t: int) -> bool:
        """Form a group with those who are left, if there is a way; whether the stage is still to be done."""
        before = self.world.members
        self.stage, self.t = self.world.reform(error, (stage, t))
        if self.stage > stage:  # it was begun by all who were there then
            self.crew, self.names = before, None
        return self.stage == stage

    @property
    def is_whole(self) -> bool:
        """Whether all who have begun the stage are still there."""
        return self.crew == self.world.members

    def own_places(self, n: int) -> range:
        """The places of the nodes of this process among the n that the stage has begun with."""
        rank = self.world.members[self.world.rank]
        return block(n, self.crew.index(rank), len(self.crew))

    def remaining(self, names: list[int]) -> list[int]:
        """Of the nodes that the stage has begun with, those whose process is still there; everybody keeps its own."""
        places = [
            block(len(names), i, len(self.crew)) for i, rank in enumerate(self.crew) if rank in self.world.members
        ]
        return [names[place] for block_ in places for place in block_]
