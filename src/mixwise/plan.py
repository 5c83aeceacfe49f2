"""The answer of a policy: the matrices of one mixing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import GmeSolution, MixingMatrix
from mixwise.mixing.matrix import FloatArray


@dataclass(frozen=True)
class Plan:
    """The matrices of one mixing, one communication round each, in the order in which they are applied.

    Attributes:
        params: the rounds of the parameters.
        updates: the rounds of the updates, for algorithms that mix parameters and updates separately.
        solves: the reports of the solves of this mixing; a solve may also be for a later one.
        tree: a spanning tree in place of matrices, for algorithms that relay along it.
        optimized: whether these weights were fitted to the nodes' rows or updates, at this mixing or before.
    """

    params: tuple[MixingMatrix, ...]
    updates: tuple[MixingMatrix, ...] | None = None
    solves: tuple[GmeSolution, ...] = ()
    tree: Graph | None = None
    optimized: bool = False

    @property
    def matrices(self) -> tuple[MixingMatrix, ...]:
        """The matrices of both channels."""
        return self.params + (self.updates or ())

    @property
    def params_product(self) -> FloatArray:
        """W₁ W₂ ⋯, (n, n): the effect of all rounds of `params`, since W₂ᵀ (W₁ᵀ X) = (W₁ W₂)ᵀ X."""
        return _product(self.params)

    @property
    def updates_product(self) -> FloatArray:
        """The same for the updates, which follow the parameters unless the plan has rounds of their own."""
        return self.params_product if self.updates is None else _product(self.updates)

    def one_channel(self, name: str) -> tuple[MixingMatrix, ...]:
        """The rounds, for a method that mixes one thing."""
        if self.updates is not None:
            raise MixingError(f"{name} mixes one thing; a policy with a second channel needs algorithm: decoupled")
        if not self.params:
            raise MixingError(f"{name} needs mixing weights; a policy that chooses a tree is for algorithm: relay")
        return self.params

    def symmetric_rounds(self, name: str) -> tuple[MixingMatrix, ...]:
        """The rounds, for a method that needs a symmetric W: one, or some that run forth and back, W₁ W₂ W₁.

        A W₂ Aᵀ has no eigenvalue below the smallest of W₂ (or 0), so what is stable for W₂ is for the product.
        """
        rounds = self.one_channel(name)
        if len(rounds) % 2 == 0 or rounds != rounds[::-1]:
            raise MixingError(
                f"{name} needs a symmetric mixing, and {len(rounds)} rounds in a row are not; use a policy with one "
                f"matrix per mixing, or policy: pairs, whose rounds run forth and back"
            )
        return rounds

    def one_matrix(self, name: str) -> MixingMatrix:
        """The matrix, for a method that mixes in one round."""
        if self.updates is not None or len(self.params) != 1:
            raise MixingError(f"{name} mixes in one round with one matrix; use a policy with one matrix per mixing")
        return self.params[0]


def _product(rounds: tuple[MixingMatrix, ...]) -> FloatArray:
    for W in rounds:
        W.need_whole("the product of a plan's rounds")
    product: FloatArray = reduce(np.matmul, (W.to_dense() for W in rounds))
    return product
