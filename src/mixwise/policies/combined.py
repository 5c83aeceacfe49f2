"""Policies made of policies; each nested policy has its own state and its own random streams, named by its path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix
from mixwise.parts import part, words
from mixwise.policies.choice import Nested, as_policy
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.seeding import numpy_generator


@dataclass(frozen=True)
class _Nested(Policy):
    """The common part of policies that consist of others, by name."""

    def inside(self) -> dict[str, Policy]:
        """Return the nested policies by name."""
        raise NotImplementedError

    @property
    def provides(self) -> Provides:
        """Weights, which change, or leave the graph, if those of any part do."""
        parts = [policy.provides for policy in self.inside().values()]
        return Provides(changes=any(each.changes for each in parts), own_edges=any(each.own_edges for each in parts))

    def init(self, context: Context) -> State:
        """Return the states of the parts."""
        return State(parts={name: policy.init(context.at(name)) for name, policy in self.inside().items()})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return the known matrices of all parts."""
        return tuple(W for name, policy in self.inside().items() for W in policy.matrices(state.parts[name]))

    def looks(self, t: int, state: State) -> Look | None:
        """Return what any of the parts wants to see."""
        return Look.together(policy.looks(t, state.parts[name]) for name, policy in self.inside().items())


@dataclass(frozen=True)
class _Several(_Nested):
    """Policies in a row, named by their numbers."""

    policies: Sequence[Nested]

    def __post_init__(self) -> None:
        if not self.policies:
            raise MixingError(f"{type(self).__name__} needs at least one policy")
        object.__setattr__(self, "policies", tuple(as_policy(policy) for policy in self.policies))

    def inside(self) -> dict[str, Policy]:
        """Return the policies, by number."""
        return {str(number): as_policy(policy) for number, policy in enumerate(self.policies)}


@dataclass(frozen=True)
class _OneOf(_Several):
    """One of the policies at every mixing; subclasses say which."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = sorted({policy.provides.plan for policy in self.inside().values()})
        if len(kinds) > 1:
            raise MixingError(f"policies that take turns must provide the same, but these provide {', '.join(kinds)}")

    @property
    def provides(self) -> Provides:
        """The same as the parts; the weights change if any part changes them, or if the parts differ."""
        parts, together = list(self.inside().values()), super().provides
        return replace(together, plan=parts[0].provides.plan, changes=together.changes or len(set(parts)) > 1)

    def turn(self, t: int, state: State) -> str:
        """Return the name of the part for mixing t."""
        raise NotImplementedError

    def looks(self, t: int, state: State) -> Look | None:
        """Return what the part whose turn it is wants to see."""
        name = self.turn(t, state)
        return self.inside()[name].looks(t, state.parts[name])

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the plan of the part whose turn it is."""
        name = self.turn(round.t, state)
        return self.inside()[name].plan(round, state.parts[name], network)


@part("alternating", title="several in turn", does="several policies in turn")
@dataclass(frozen=True)
class Alternating(_OneOf):
    """Takes turns: policy t mod k at mixing t."""

    def describe(self) -> str:
        """Return the words of all policies."""
        return "in turn " + " and ".join(map(words, self.policies))

    def turn(self, t: int, state: State) -> str:
        """Return t mod k."""
        return str(t % len(self.policies))


@part("random", title="one of several at random", does="one of several policies, drawn at random at every mixing")
@dataclass(frozen=True)
class RandomChoice(_OneOf):
    """A policy drawn at random at every mixing, the same one on every process.

    `RandomChoice([W_1, W_2])` is W⁽ᵗ⁾ ~ 𝒲 of the paper's Algorithm 1; `RandomChoice([HeterogeneityAware(), W_p])` is
    its HA-DSGD with random sampling of mixing matrices (Appendix B).

    Args:
        policies: the policies to draw from; one matrix stands for the same weights at every mixing.
        probabilities: one each; uniform by default.
    """

    probabilities: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.policies)
        chances = (1 / count,) * count if self.probabilities is None else tuple(self.probabilities)
        if len(chances) != count or min(chances) < 0 or not abs(sum(chances) - 1) <= 1e-9:
            raise MixingError(
                f"probabilities = {list(chances)} for {count} policies; give one each, none negative, with sum 1"
            )
        object.__setattr__(self, "probabilities", chances)

    def describe(self) -> str:
        """Return the words of all policies."""
        return "at random one of: " + "; ".join(map(words, self.policies))

    def init(self, context: Context) -> State:
        """Return the states of the parts, and the name of the draws."""
        state = super().init(context)
        state.scratch["seed"] = context.seed
        return state

    def turn(self, t: int, state: State) -> str:
        """Return the number drawn for mixing t."""
        draw = numpy_generator(state.scratch["seed"], "choice", t).random()
        which = int(np.searchsorted(np.cumsum(self.probabilities or ()), draw, side="right"))
        return str(min(which, len(self.policies) - 1))


@part("product", title="several in a row", does="several policies at every mixing, one communication round each")
@dataclass(frozen=True)
class Product(_Several):
    """All policies one after the other at every mixing, one communication round each, the first one first.

    `Product([aware, W_p])` is the product W_ζ′ W_p of the paper's Example 3: the consensus factor is at least
    that of W_p and the relative heterogeneity at most that of W_ζ′, for twice the communication.
    """

    def describe(self) -> str:
        """Return the words of all policies."""
        return "one after the other " + ", then ".join(map(words, self.policies))

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the rounds of all policies in a row."""
        plans = [policy.plan(round, state.parts[name], network) for name, policy in self.inside().items()]
        if any(plan.updates is not None for plan in plans):
            raise MixingError("a product of plans with a second channel is not defined; put it inside Decoupled")
        rounds = tuple(W for plan in plans for W in plan.params)
        return Plan(rounds, **_reports(plans))


@part(
    "decoupled", title="parameters: {params}; updates: {updates}",
    does="one policy for the parameters, one for the updates, for `algorithm: decoupled`",
)  # fmt: skip
@dataclass(frozen=True)
class Decoupled(_Nested):
    """One policy for the parameters, another for the updates (paper, Algorithm 4: W_p and W_g)."""

    params: Nested
    updates: Nested

    def inside(self) -> dict[str, Policy]:
        """Return both policies."""
        return {"params": as_policy(self.params), "updates": as_policy(self.updates)}

    @property
    def provides(self) -> Provides:
        """Two channels."""
        return replace(super().provides, plan="two channels")

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return both plans, each on its channel."""
        plans = {name: policy.plan(round, state.parts[name], network) for name, policy in self.inside().items()}
        params, updates = plans["params"], plans["updates"]
        return Plan(params.params, updates=updates.params, **_reports([params, updates]))


def _reports(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the solves of all plans together, and whether any has optimized weights, as arguments of `Plan`."""
    solves = tuple(solve for plan in plans for solve in plan.solves)
    return {"solves": solves, "optimized": any(plan.optimized for plan in plans)}
