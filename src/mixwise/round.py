"""One mixing as a value: the rows before and after the optimizer's steps, and what can be derived from them on demand.

Legend: X, X′, G, D, U (m, d), owned rows; B (m, b) their buffers; S (m, k) sketches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from mixwise.errors import MixingError
from mixwise.mixing.matrix import FloatArray
from mixwise.sketch import CountSketch, RandomSketch, Sketch, as_sketch
from mixwise.state import State

if TYPE_CHECKING:
    from mixwise.protocols import Algorithm

_PIECE = 1 << 17  # numbers of U that exist at a time


@dataclass(eq=False)
class Round:
    """Mixing t of a run.

    Attributes:
        t: how many mixings came before.
        X_prime: X′, the rows after the optimizer's steps; `Algorithm.mix` turns them into X⁺, in place.
        G: the gradients of the last step.
        X: the rows at the last mixing, if the algorithm or the policy needs them; `Algorithm.mix` may overwrite them.
        lr: the sum of the learning rates since the last mixing.
        D: what the optimizer saw in place of G, if the algorithm changes the gradients.
        B: the buffers to mix, if any.
        algorithm, state: the method and its state, since the update is not X − X′ for every method.
        sums: count sketches of X, which replace X where sketches of X − X′ are all that is needed.
    """

    t: int
    X_prime: torch.Tensor
    G: torch.Tensor
    X: torch.Tensor | None = None
    lr: float = 1.0
    D: torch.Tensor | None = None
    B: torch.Tensor | None = None
    algorithm: Algorithm | None = None
    state: State = field(default_factory=State)
    sums: Mapping[CountSketch, FloatArray] = field(default_factory=dict)

    @property
    def before(self) -> torch.Tensor:
        """X; a `MixingError` if it was not kept."""
        if self.X is None:
            raise MixingError("the rows before the step were not kept; say so in `Needs.previous` or `Policy.looks`")
        return self.X

    @property
    def directions(self) -> torch.Tensor:
        """What the optimizer saw in the last step: D, or the gradients themselves."""
        return self.G if self.D is None else self.D

    @property
    def update(self) -> torch.Tensor:
        """U, the update that is about to be mixed; a new tensor."""
        before, after = self._update
        return before - after

    @property
    def rows(self) -> torch.Tensor:
        """The rows that are about to be mixed."""
        return self.X_prime if self.algorithm is None else self.algorithm.rows_to_mix(self, self.state)

    @property
    def _update(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.algorithm is None:
            return self.before, self.X_prime
        return self.algorithm.update(self, self.state)

    def sketched_update(self, sketch: Sketch) -> torch.Tensor:
        """S of the update, without U in memory where the rows are long."""
        if isinstance(sketch, CountSketch) and sketch in self.sums:
            return as_sketch(self.sums[sketch] - sketch.sums(self.X_prime), self.X_prime)
        before, after = self._update
        if before.numel() <= _PIECE or not isinstance(sketch, RandomSketch):
            return sketch(before - after)
        return sketch.streamed(_pieces(before, after))


def _pieces(before: torch.Tensor, after: torch.Tensor) -> Iterator[torch.Tensor]:
    """The difference, some columns at a time."""
    m, d = before.shape
    width = max(1, _PIECE // m)
    for start in range(0, d, width):
        columns = slice(start, start + width)
        yield before[:, columns] - after[:, columns]
