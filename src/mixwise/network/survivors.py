"""The traffic and the rows after a loss of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch

from mixwise.errors import NetworkError
from mixwise.protocols import Network


def keep_counting(traffic: Mapping[str, int], n: int, network: Network) -> None:
    """Add the share of the remaining nodes in the traffic of n nodes before a loss."""
    for name, count in traffic.items():
        setattr(network.traffic, name, getattr(network.traffic, name) + round(count * network.graph.n / n))


@contextmanager
def restored_on_loss(rows: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore these rows if a process is lost inside: a mixing may change them before all messages have arrived."""
    before = [each.clone() for each in rows]
    try:
        yield
    except NetworkError:
        for each, safe in zip(rows, before, strict=True):
            each.copy_(safe)
        raise


def listed(nodes: Sequence[int]) -> str:
    """Return the numbers as runs.

    >>> listed([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs = [[node for _, node in run] for _, run in groupby(enumerate(nodes), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
