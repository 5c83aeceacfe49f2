"""Which process owns which nodes: contiguous blocks of rows, as equal as they can be."""

from __future__ import annotations

from mixwise.errors import NetworkError


def block(n: int, rank: int, world: int) -> range:
    """The nodes of one process; the first n mod world blocks have one node more.

    >>> [block(10, rank, 4) for rank in range(4)]
    [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    if world > n:
        raise NetworkError(
            f"{world} processes for {n} nodes: every process needs at least one; start {n} or fewer, "
            f"or take a graph with {world} or more nodes"
        )
    size, larger = divmod(n, world)
    start = rank * size + min(rank, larger)
    return range(start, start + size + (rank < larger))
