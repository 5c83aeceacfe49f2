"""Algorithms from a configuration, and which kind of policy each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from mixwise.algorithms import (
    D2,
    DSGD,
    EXTRA,
    Algorithm,
    AllReduceSGD,
    Choco,
    CombineThenAdapt,
    CombineWhileAdapt,
    DAdam,
    DecentLaM,
    DecoupledDSGD,
    GradientTracking,
    LocalSGD,
    PushSum,
    Quantize,
    QuasiGlobalAdam,
    QuasiGlobalMomentum,
    RelaySGD,
    TopK,
)
from mixwise.errors import ConfigError
from mixwise.experiments.algorithm_config import (
    AlgorithmConfig,
    ChocoConfig,
    DecentLaMConfig,
    PlainAlgorithm,
    QuasiGlobalAdamConfig,
    QuasiGlobalConfig,
)
from mixwise.experiments.policy_config import (
    DCliquesPolicy,
    DecoupledPolicy,
    HeterogeneityAwareTreePolicy,
    NonePolicy,
    PolicyConfig,
    TreePolicy,
)
from mixwise.seeding import stream

Gives: TypeAlias = Literal["weights", "two channels", "a tree", "nothing"]

_PLAIN: Mapping[str, Callable[[], Algorithm]] = {
    "dsgd": DSGD,
    "combine-then-adapt": CombineThenAdapt,
    "combine-while-adapt": CombineWhileAdapt,
    "decoupled": DecoupledDSGD,
    "d2": D2,
    "extra": EXTRA,
    "gradient-tracking": GradientTracking,
    "dadam": DAdam,
    "relay": RelaySGD,
    "push-sum": PushSum,
    "all-reduce": AllReduceSGD,
    "local-sgd": LocalSGD,
}
_NEEDS: Mapping[str, tuple[Gives, str]] = {
    "decoupled": ("two channels", "policy.kind: decoupled or d-cliques"),
    "relay": ("a tree", "policy.kind: tree or heterogeneity-aware-tree"),
    "all-reduce": ("nothing", "policy: none"),
    "local-sgd": ("nothing", "policy: none"),
}


def build_algorithm(config: AlgorithmConfig, seed: int) -> Algorithm:
    """The algorithm that a part of a recipe describes."""
    match config:
        case PlainAlgorithm():
            return _PLAIN[config.kind]()
        case QuasiGlobalConfig():
            return QuasiGlobalMomentum(
                config.beta, mu=config.mu, nesterov=config.nesterov, inner=_PLAIN[config.inner]()
            )
        case QuasiGlobalAdamConfig():
            return QuasiGlobalAdam(config.betas, config.eps, inner=_PLAIN[config.inner]())
        case DecentLaMConfig():
            return DecentLaM(config.beta)
        case ChocoConfig():
            seed = stream(seed, "compressor")
            return Choco(TopK(config.top_k) if config.bits is None else Quantize(config.bits, seed), config.gamma)


def check_together(algorithm: AlgorithmConfig, policy: PolicyConfig) -> None:
    """Refuse a policy that gives something else than the algorithm mixes with."""
    name = getattr(algorithm, "inner", algorithm.kind)
    needs, remedy = _NEEDS.get(name, ("weights", "weights such as metropolis-hastings"))
    gives: Gives = "weights"
    if isinstance(policy, DecoupledPolicy | DCliquesPolicy):
        gives = "two channels"
    elif isinstance(policy, TreePolicy | HeterogeneityAwareTreePolicy):
        gives = "a tree"
    elif isinstance(policy, NonePolicy):
        gives = "nothing"
    if needs != gives:
        raise ConfigError(
            f"algorithm: {name} and policy.kind: {policy.kind} do not go together: the policy gives {gives}, "
            f"the algorithm mixes with {needs}; take {remedy}"
        )
