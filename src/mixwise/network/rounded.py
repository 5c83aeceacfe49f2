"""Gossip of rows that are kept in bfloat16: the products in float32, rounded at random.

To the nearest bfloat16, a step that one of three neighbors has taken would be lost in their mean (docs/memory.md).
"""

from __future__ import annotations

from typing import Any

import torch

from mixwise.mixing import MixingMatrix
from mixwise.network.base import Network
from mixwise.network.packing import Cast, Packing
from mixwise.seeding import generator
from mixwise.tasks.rounding import round_at_random

_BLOCK = 1 << 20  # numbers of one block of columns that is in float32 at a time


class RoundedNetwork:
    """A network around another one; rows of other precisions go through as they are.

    Args:
        network: moves the rows; between processes they travel as they are kept, in 2 bytes per number.
        seed: names the draws.
    """

    def __init__(self, network: Network, seed: int) -> None:
        self._inner, self._seed = network, seed
        self._round = 0  # mixings in the step that is under way

    def __getattr__(self, name: str) -> Any:
        """All else is the other one's."""
        if name == "_inner":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def step(self) -> int | None:
        """The step that is under way."""
        return self._inner.step

    @step.setter
    def step(self, step: int | None) -> None:
        self._inner.step, self._round = step, 0

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """One gossip step, some columns at a time."""
        if rows.dtype != torch.bfloat16:
            return self._inner.mix(rows, W, out=out, packing=packing)
        out = torch.empty_like(rows) if out is None else out
        m, d = rows.shape
        streams = [generator(self._seed, "mixing", node, self.step or 0, self._round) for node in self._inner.nodes]
        self._round += 1
        # In one piece where the time of a round is counted, since several pieces would be several rounds.
        width = d if getattr(self._inner, "links", None) is not None else max(1, _BLOCK // m)
        for start in range(0, d, width):
            columns = slice(start, min(start + width, d))
            part = rows[:, columns].float()
            mixed = self._inner.mix(part, W, out=part, packing=Cast(part, torch.bfloat16))
            for row, place, stream in zip(mixed, out[:, columns], streams, strict=True):
                round_at_random(row, place, stream)
        return out
