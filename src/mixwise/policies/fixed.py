"""Policies that do not look at the data."""

from __future__ import annotations

from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies.plan import Gives, Observation, Plan, Policy, Stateless


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


def as_policy(choice: Policy | MixingMatrix) -> Policy:
    """One matrix stands for the same weights at every mixing."""
    return Fixed(choice) if isinstance(choice, MixingMatrix) else choice
