"""Policies from a configuration."""

from __future__ import annotations

from collections.abc import Callable

from mixwise import policies
from mixwise.experiments.policy_config import (
    AlternatingPolicy,
    AutoPolicy,
    Cliques,
    CyclePolicy,
    DCliquesPolicy,
    DecoupledPolicy,
    EdgeSamplingPolicy,
    FixedPolicy,
    HeterogeneityAwareMatchingsPolicy,
    HeterogeneityAwarePolicy,
    LearnedTopologyPolicy,
    MatchaPolicy,
    MatchingsPolicy,
    NonePolicy,
    PolicyConfig,
    ProductPolicy,
    RandomPolicy,
    Scheme,
    SketchConfig,
    TreePolicy,
)
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.schemes import SCHEMES
from mixwise.policies import Policy
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch


def build_policy(config: PolicyConfig) -> Policy:
    """The policy that a part of a recipe describes."""
    options = config.model_dump(exclude={"kind"}, exclude_unset=True)
    match config:
        case FixedPolicy():
            return policies.Fixed(_scheme(config.weights))
        case RandomPolicy():
            return policies.RandomChoice([build_policy(policy) for policy in config.policies], config.probabilities)
        case AlternatingPolicy():
            return policies.Alternating([build_policy(policy) for policy in config.policies])
        case ProductPolicy():
            return policies.Product([build_policy(policy) for policy in config.policies])
        case DecoupledPolicy():
            return policies.Decoupled(build_policy(config.params), build_policy(config.updates))
        case AutoPolicy():
            return policies.Auto()
        case HeterogeneityAwarePolicy():
            options["sketch"] = _sketch(config.sketch)
            for name in ("alternate_with", "graphs"):
                nested = getattr(config, name)
                options[name] = None if nested is None else build_policy(nested)
            return policies.HeterogeneityAware(**options)
        case CyclePolicy():
            return policies.Cycle(**options)
        case MatchingsPolicy():
            return policies.Matchings()
        case MatchaPolicy():
            return policies.Matcha(**options)
        case EdgeSamplingPolicy():
            return policies.EdgeSampling(**options)
        case DCliquesPolicy():
            return policies.DCliques(**options)
        case LearnedTopologyPolicy():
            return policies.LearnedTopology(**options)
        case TreePolicy():
            return policies.Tree(**options)
        case HeterogeneityAwareMatchingsPolicy():
            return policies.HeterogeneityAwareMatchings(**options | {"sketch": _sketch(config.sketch)})
        case NonePolicy():
            return policies.NoMixing()


def _sketch(config: SketchConfig) -> Sketch:
    if config.kind == "exact":
        return ExactSketch()
    return (GaussianSketch if config.kind == "gaussian" else CountSketch)(config.dim)


def _scheme(scheme: Scheme | Cliques) -> str | Callable[[Graph], MixingMatrix]:
    return scheme if isinstance(scheme, str) else policies.Cliques(tuple(map(tuple, scheme.cliques)))


def scheme_weights(scheme: Scheme | Cliques, graph: Graph) -> MixingMatrix:
    """Weights by the name of their scheme, or averaging in cliques."""
    found = _scheme(scheme)
    return SCHEMES[found](graph) if isinstance(found, str) else found(graph)
