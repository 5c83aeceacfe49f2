"""Values that may be passed where a policy is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from mixwise.errors import MixingError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.parts import FAMILIES, build
from mixwise.policies.fixed import Fixed, NoMixing
from mixwise.protocols import Algorithm, Needs, Policy

PolicyLike: TypeAlias = Policy | MixingMatrix | str | Callable[[Graph], Policy | MixingMatrix]
Nested: TypeAlias = Annotated[Policy | MixingMatrix | str, FAMILIES["policy"]]  # a policy inside of another one


def as_policy(choice: PolicyLike) -> Policy:
    """Return the policy that is meant by a policy, a mixing matrix, or the name of a policy or a weighting scheme."""
    if isinstance(choice, MixingMatrix):
        return Fixed(choice)
    policy = build("policy", choice, "policy") if isinstance(choice, str) else choice
    if not isinstance(policy, Policy):
        raise MixingError(
            f"policy is {kind_of(policy)}; pass a policy such as mixwise.policies.HeterogeneityAware(), the name of a "
            f"policy or a weighting scheme, or a matrix such as mixwise.MixingMatrix.from_dense(W)"
        )
    return policy


def as_algorithm(choice: Algorithm | str) -> Algorithm:
    """Return the algorithm that is meant by an algorithm or its name."""
    algorithm = build("algorithm", choice, "algorithm") if isinstance(choice, str) else choice
    if not isinstance(algorithm, Algorithm):
        example = f"{choice.__name__}()" if isinstance(choice, type) else "mixwise.algorithms.D2()"
        raise TrainingError(f"algorithm is {kind_of(choice)}; pass an algorithm such as {example}, or its name")
    return algorithm


def policy_for(choice: PolicyLike, graph: Graph, needs: Needs) -> Policy:
    """Return the policy of a run on this graph; `choice` may also be a function of the graph."""
    if not isinstance(choice, Policy | MixingMatrix | str | type) and callable(choice):
        choice = choice(graph)
    if isinstance(choice, str) and choice == "auto" and needs.plan == "nothing":
        return NoMixing()
    return as_policy(choice)
