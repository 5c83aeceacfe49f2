"""Policies that do not look at the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies.plan import Gives, Observation, Plan, Stateless
from mixwise.seeding import numpy_generator, stream


class Fixed(Stateless):
    """The same matrix at every mixing."""

    def __init__(self, W: MixingMatrix) -> None:
        self.W = W

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """W."""
        return (self.W,)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with W."""
        return Plan((self.W,))


class NoMixing(Stateless):
    """No weights at all: for algorithms that average over all nodes."""

    gives: Gives = "nothing"

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """Nothing."""
        return Plan(())


class RandomChoice(Stateless):
    """A matrix drawn anew at every mixing: W⁽ᵗ⁾ ~ 𝒲 (paper, Algorithm 1). Every process draws the same one."""

    def __init__(
        self, matrices: Sequence[MixingMatrix], probabilities: Sequence[float] | None = None, seed: int = 0
    ) -> None:
        if not matrices:
            raise MixingError("a random choice needs at least one matrix")
        chances = [1 / len(matrices)] * len(matrices) if probabilities is None else list(probabilities)
        if len(chances) != len(matrices) or min(chances) < 0 or not abs(sum(chances) - 1) <= 1e-9:
            raise MixingError(f"probabilities = {chances} for {len(matrices)} matrices; one each, none negative, sum 1")
        self.matrices, self.probabilities, self.seed = tuple(matrices), tuple(chances), seed

    def rename_streams(self, name: str) -> None:
        """The draws of another seed."""
        self.seed = stream(self.seed, "part", name)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """All that may be drawn."""
        return self.matrices

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the matrix drawn for mixing t."""
        draw = numpy_generator(self.seed, "choice", t).random()
        which = int(np.searchsorted(np.cumsum(self.probabilities), draw, side="right"))
        return Plan((self.matrices[min(which, len(self.matrices) - 1)],))
