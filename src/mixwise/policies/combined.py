"""Policies made of policies.

The parts are copies of the policies that were passed, each with random streams of its own: the two matchings of
`Product(Matchings(graph), Matchings(graph))` are drawn independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies.fixed import as_policy
from mixwise.policies.plan import Gives, Observation, Plan, Policy, PolicyState, nested
from mixwise.seeding import numpy_generator, stream
from mixwise.sketch import Sketch


def all_sketches(policies: Iterable[Policy], t: int) -> tuple[Sketch, ...] | None:
    """The sketches that several policies ask for; None if one of them needs the updates themselves."""
    asked = [policy.sketches(t) for policy in policies]
    return None if any(part is None for part in asked) else tuple(sketch for part in asked for sketch in part or ())


class Combined:
    """What all of them share: the parts' streams and states, each under the part's number."""

    gives: Gives = "weights"

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(nested(policy, str(number)) for number, policy in enumerate(policies))

    @property
    def changes(self) -> bool:
        """If any part does."""
        return any(policy.changes for policy in self.policies)

    def observes(self, t: int) -> bool:
        """If any part does."""
        return any(policy.observes(t) for policy in self.policies)

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """Those of all parts that observe, if all of them say."""
        return all_sketches((policy for policy in self.policies if policy.observes(t)), t)

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """Ask every part."""
        for policy in self.policies:
            policy.ask(symmetric=symmetric, lazy=lazy)

    def rename_streams(self, name: str) -> None:
        """Those of every part."""
        for policy in self.policies:
            policy.rename_streams(name)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """Those of the parts."""
        return tuple(W for policy in self.policies for W in policy.known_matrices())

    def state(self) -> PolicyState:
        """The states of the parts."""
        tensors: dict[str, torch.Tensor] = {}
        values: dict[str, Any] = {}
        for number, policy in enumerate(self.policies):
            part, values[str(number)] = policy.state()
            tensors |= {f"{number}.{name}": value for name, value in part.items()}
        return tensors, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Hand each part its state."""
        for number, policy in enumerate(self.policies):
            own = f"{number}."
            part = {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
            policy.load_state(part, values[str(number)])


class OneOf(Combined):
    """One of the parts at every mixing; subclasses say whose turn it is."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        if len({policy.gives for policy in policies}) > 1:
            listed = ", ".join(sorted({policy.gives for policy in policies}))
            raise MixingError(f"policies that take turns must give the same, but these give {listed}")
        super().__init__(policies)
        self.gives = policies[0].gives

    def turn(self, t: int) -> Policy:
        """The part whose turn it is at mixing t."""
        raise NotImplementedError

    @property
    def changes(self) -> bool:
        """If any part does, or the parts differ."""
        return super().changes or len(set(self.known_matrices())) != 1

    def observes(self, t: int) -> bool:
        """If the one whose turn it is does."""
        return self.turn(t).observes(t)

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """Those of the one whose turn it is."""
        return self.turn(t).sketches(t)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """The plan of the policy whose turn it is."""
        return self.turn(t).plan(t, observed, network)


class Alternating(OneOf):
    """Takes turns: policy t mod k at mixing t."""

    def __init__(self, *policies: Policy) -> None:
        if not policies:
            raise MixingError("alternating needs at least one policy")
        super().__init__(policies)

    def turn(self, t: int) -> Policy:
        """Number t mod k."""
        return self.policies[t % len(self.policies)]


class RandomChoice(OneOf):
    """A policy drawn at random at every mixing; every process draws the same one.

    `RandomChoice([W_1, W_2])` is W⁽ᵗ⁾ ~ 𝒲 of the paper's Algorithm 1; `RandomChoice([HeterogeneityAware(), W_p])` is
    its HA-DSGD with random sampling of mixing matrices (Appendix B).

    Args:
        policies: what is drawn from; one matrix stands for the same weights at every mixing.
        probabilities: one each; all the same by default.
        seed: names the draws.
    """

    def __init__(
        self, policies: Sequence[Policy | MixingMatrix], probabilities: Sequence[float] | None = None, seed: int = 0
    ) -> None:
        if not policies:
            raise MixingError("a random choice needs at least one policy or matrix")
        chances = [1 / len(policies)] * len(policies) if probabilities is None else list(probabilities)
        if len(chances) != len(policies) or min(chances) < 0 or not abs(sum(chances) - 1) <= 1e-9:
            raise MixingError(f"probabilities = {chances} for {len(policies)} policies; one each, none negative, sum 1")
        super().__init__([as_policy(policy) for policy in policies])
        self.probabilities, self.seed = tuple(chances), seed

    def rename_streams(self, name: str) -> None:
        """Those of the draws, and of every part."""
        super().rename_streams(name)
        self.seed = stream(self.seed, "part", name)

    def turn(self, t: int) -> Policy:
        """The one that is drawn for mixing t."""
        draw = numpy_generator(self.seed, "choice", t).random()
        which = int(np.searchsorted(np.cumsum(self.probabilities), draw, side="right"))
        return self.policies[min(which, len(self.policies) - 1)]


class Product(Combined):
    """All policies one after the other at every mixing, one communication round each, the first one first.

    `Product(aware, Fixed(W_p))` is the product W_ζ′ W_p of the paper's Example 3: the consensus factor is at least
    that of W_p and the relative heterogeneity at most that of W_ζ′, for twice the communication.
    """

    def __init__(self, *policies: Policy) -> None:
        if not policies:
            raise MixingError("a product needs at least one policy")
        super().__init__(policies)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """The rounds of all policies in a row."""
        plans = [policy.plan(t, observed, network) for policy in self.policies]
        if any(plan.updates is not None for plan in plans):
            raise MixingError("a product of plans with a second channel has no meaning; put it inside Decoupled")
        rounds = tuple(W for plan in plans for W in plan.params)
        solve = next((plan.solve for plan in plans if plan.solve is not None), None)
        return Plan(rounds, solve=solve)


class Decoupled(Combined):
    """One policy for the parameters, another for the updates (paper, Algorithm 4: W_p and W_g)."""

    gives: Gives = "two channels"

    def __init__(self, params: Policy, updates: Policy) -> None:
        super().__init__((params, updates))
        self.params, self.updates = self.policies

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """Both plans, each on its channel."""
        params = self.params.plan(t, observed, network)
        updates = self.updates.plan(t, observed, network)
        return Plan(params.params, updates=updates.params, solve=updates.solve or params.solve)
