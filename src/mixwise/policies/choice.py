"""Values that may be passed where a policy is expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, cast

from mixwise.errors import GraphError, MixingError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing import MixingMatrix
from mixwise.parts import FAMILIES, build
from mixwise.parts.declaration import about
from mixwise.policies.fixed import Fixed, NoMixing, Weights
from mixwise.policies.sequence import Cycle
from mixwise.protocols import Algorithm, Context, Needs, Policy

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
        scheme = about(choice).family == "scheme"  # kept, so that records and reports can name it
        choice = Fixed(cast(Weights, choice)) if scheme else choice(graph)
    if isinstance(choice, str) and choice == "auto" and needs.plan == "nothing":
        return NoMixing()
    return as_policy(choice)


def in_turn(choices: Sequence[GraphLike], choice: PolicyLike) -> tuple[Graph, Policy]:
    """Return the union of several graphs, and the policy that mixes on one of them after the other.

    The weights are made for each graph by a scheme, by name or as a function of the graph; "auto" stands for
    Metropolis-Hastings.
    """
    graphs = [as_graph(each) for each in choices]
    if not graphs:
        raise GraphError("graph is an empty list; give at least one graph")
    n, directed = graphs[0].n, any(graph.directed for graph in graphs)
    for number, graph in enumerate(graphs):
        if graph.n != n:
            raise GraphError(f"graph {number} has {graph.n} nodes, graph 0 has {n}; all must connect the same nodes")
    arcs = [arc for graph in graphs for arc in zip(graph.arcs.senders, graph.arcs.receivers, strict=True)]
    name = "metropolis-hastings" if isinstance(choice, str) and choice == "auto" else choice
    matrices = []
    for graph in graphs:
        policy = policy_for(name, graph, Needs())
        known = policy.plans(Context(graph))[0].params if isinstance(policy, Fixed) else ()
        if not known or known[0].graph != graph:
            raise MixingError(
                f"policy is {kind_of(choice)}; with several graphs, give a weighting scheme that makes the weights of "
                f"each, such as policy='metropolis-hastings', or one graph and a policy such as Cycle([W0, W1])"
            )
        matrices.append(known[0])
    return Graph(n, arcs, directed=directed), Cycle(matrices)
