"""What may be passed where a policy is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.schemes import SCHEMES
from mixwise.needs import Needs
from mixwise.policies.fixed import Fixed, NoMixing
from mixwise.protocols import Policy

PolicyLike: TypeAlias = Policy | MixingMatrix | str | Callable[[Graph], "Policy | MixingMatrix"]


def as_policy(choice: PolicyLike) -> Policy:
    """Return the policy that is meant by a policy, a mixing matrix, or the name of a policy or a weighting scheme."""
    if isinstance(choice, Policy):
        return choice
    if isinstance(choice, MixingMatrix):
        return Fixed(choice)
    if isinstance(choice, str):
        if choice == "auto":
            from mixwise.policies.auto import Auto  # it is made of policies

            return Auto()
        if choice == "none":
            return NoMixing()
        if choice in SCHEMES:
            return Fixed(choice)
    raise MixingError(
        f"policy = {choice!r}; pass a policy such as mixwise.policies.HeterogeneityAware(), a mixing matrix, or one of "
        f"auto, {', '.join(SCHEMES)}"
    )


def policy_for(choice: PolicyLike, graph: Graph, needs: Needs) -> Policy:
    """Return the policy of a run on this graph; `choice` may also be a function of the graph."""
    if not isinstance(choice, Policy | MixingMatrix | str) and callable(choice) and not isinstance(choice, type):
        choice = choice(graph)
    if choice == "auto" and needs.plan == "nothing":
        return NoMixing()
    return as_policy(choice)
