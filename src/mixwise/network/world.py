"""The processes that share a run: one alone in a simulation, several under torchrun (`processes.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.network.simulated import SimulatedNetwork
from mixwise.protocols import Network

Value = TypeVar("Value")


class World(Protocol):
    """Who takes part, and how they agree on what only one of them should do or say.

    Attributes:
        rank: of this process; 0 writes, prints and decides.
        size: how many processes there are.
        members: the processes that are there, by their rank at the start.
        survives: whether those who are left can go on when a process is lost.
    """

    rank: int
    size: int
    members: tuple[int, ...]
    survives: bool

    def network(self, graph: Graph, device: str = "cpu") -> Network:
        """A network of all nodes of a graph, divided over the processes; rows are kept on `device`."""
        ...

    def decide(self, decision: Callable[[], Value]) -> Value:
        """What process 0 comes to, on all of them; it must be a value of JSON. Its error is an error on all of them."""
        ...

    def reform(self, error: NetworkError, at: tuple[int, ...]) -> tuple[int, ...]:
        """Go on with those who are left, or raise the error; `at` is how far this process has come, the answer how far
        the farthest has."""
        ...

    def first_to_fail(self) -> bool:
        """Whether this process, which ends with an error, is the first to do so: then it should say why."""
        ...

    def note(self, name: str, value: str) -> None:
        """Leave a note for those who come after a restart."""
        ...

    def recall(self, name: str) -> str | None:
        """A note that was left since the processes were first launched, if there is one."""
        ...


class Alone:
    """One process that owns all nodes: a simulation."""

    rank, size = 0, 1
    members: tuple[int, ...] = (0,)
    survives = False

    def network(self, graph: Graph, device: str = "cpu") -> Network:
        """All nodes are here."""
        return SimulatedNetwork(graph)

    def decide(self, decision: Callable[[], Value]) -> Value:
        """There is nobody else to ask."""
        return decision()

    def reform(self, error: NetworkError, at: tuple[int, ...]) -> tuple[int, ...]:
        """There is nobody to go on with."""
        raise error

    def first_to_fail(self) -> bool:
        """And the last."""
        return True

    def note(self, name: str, value: str) -> None:
        """Nobody will restart it."""

    def recall(self, name: str) -> str | None:
        """Nothing came before."""
        return None
