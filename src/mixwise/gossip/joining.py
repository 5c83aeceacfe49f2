"""Ranks with different amounts of data: before each mixing everybody tells whether it has still something to do."""

from __future__ import annotations

import torch

from mixwise.errors import NetworkError
from mixwise.protocols import Network

DONE, WORKING, FAILED = 0, 1, 2


def somebody_works(status: int, network: Network, t: int, device: torch.device) -> bool:
    """Tell all ranks the status of this one before mixing t, and learn whether any has still data."""
    network.step = t
    own = torch.full((1, 1), status, dtype=torch.int64, device=device)
    with network.uncounted():
        everyone = network.gather(own)[:, 0].tolist()
    failed = [rank for rank, told in enumerate(everyone) if told == FAILED]
    if failed and status != FAILED:
        raise NetworkError(
            f"rank {failed[0]} has left the join block with an error before mixing {t}; see its output",
            missing=tuple(failed), operation="join", step=t,
        )  # fmt: skip
    return WORKING in everyone
