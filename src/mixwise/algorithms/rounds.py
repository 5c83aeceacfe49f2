"""Several communication rounds, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixwise.mixing import MixingMatrix
from mixwise.protocols import Network


def mix_in_place(rows: torch.Tensor, rounds: Sequence[MixingMatrix], network: Network) -> torch.Tensor:
    """Mix rows with one matrix after the other, in place."""
    for W in rounds:
        network.mix(rows, W, out=rows)
    return rows
