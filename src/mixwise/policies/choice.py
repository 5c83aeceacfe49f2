"""Values that may be passed where a policy is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.parts import FAMILIES, build
from mixwise.policies.fixed import Fixed, NoMixing
from mixwise.protocols import Needs, Policy

PolicyLike: TypeAlias = Policy | MixingMatrix | str | Callable[[Graph], Policy | MixingMatrix]
Nested: TypeAlias = Annotated[Policy | MixingMatrix | str, FAMILIES["policy"]]  # a policy inside of another one


def as_policy(choice: PolicyLike) -> Policy:
    """Return the policy that is meant by a policy, a mixing matrix, or the name of a policy or a weighting scheme."""
    if isinstance(choice, MixingMatrix):
        return Fixed(choice)
    policy = build("policy", choice, "policy") if isinstance(choice, str) else choice
    if not isinstance(policy, Policy):
        raise MixingError(
            f"policy = {policy!r}; pass a policy such as mixwise.policies.HeterogeneityAware(), a mixing matrix, or "
            f"the name of a policy or a weighting scheme"
        )
    return policy


def policy_for(choice: PolicyLike, graph: Graph, needs: Needs) -> Policy:
    """Return the policy of a run on this graph; `choice` may also be a function of the graph."""
    if not isinstance(choice, Policy | MixingMatrix | str | type) and callable(choice):
        choice = choice(graph)
    if isinstance(choice, str) and choice == "auto" and needs.plan == "nothing":
        return NoMixing()
    return as_policy(choice)
